/* UTF-8: strict decoding, and cutting a byte stream into whole characters. */
#ifndef DI_BASE_UTF8_H
#define DI_BASE_UTF8_H

#include "base/str.h"

/* Decode the character at s[0..n). Returns its length 1..4 and the code point, or 0 if the bytes are ill-formed; then *bad
 * (may be NULL) is the length of the maximal ill-formed subpart (1..3, Unicode §3.9) and *cp is U+FFFD. n must be > 0.
 * An unfinished character at the end of the input counts as ill-formed: use di_utf8_tail to tell. */
size_t di_utf8_decode(const char *s, size_t n, uint32_t *cp, size_t *bad);
/* Append a code point (must be a scalar value). Returns its length. out has room for 4. */
size_t di_utf8_encode(uint32_t cp, char *out);
/* Whole text well-formed? On failure *at (may be NULL) is the byte offset of the first bad byte. */
bool di_utf8_valid(struct di_str s, size_t *at);
/* Length (0..3) of a proper prefix of a well-formed character at the end of s. */
size_t di_utf8_tail(struct di_str s);
/* Bytes of the longest beginning of s that has at most `most` bytes and does not end inside a character. */
size_t di_utf8_cut(struct di_str s, size_t most);
/* Characters of a text: bytes that begin one. Of a piece of a text those that begin in it. */
size_t di_utf8_count(struct di_str s);
/* Append s, one U+FFFD for each maximal ill-formed subpart. */
void di_utf8_add_lossy(struct di_buf *b, struct di_str s);

/* Stream: bytes go in, whole characters come out at once (spec/encoding.md §1.5). Zero-initialise. */
struct di_utf8_stream {
    char tail[4];
    unsigned char n;
};
/* Append to `out` everything of tail + bytes that cannot change any more; keeps at most 3 bytes back. */
void di_utf8_stream_push(struct di_utf8_stream *st, struct di_str bytes, struct di_buf *out);
/* End of input: a leftover tail becomes U+FFFD. */
void di_utf8_stream_end(struct di_utf8_stream *st, struct di_buf *out);

#endif
