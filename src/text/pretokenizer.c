#include "text/pretokenizer.h"

#include "text/unicode_classes.h"

#include <stdbool.h>

const char *const di_pretoken_regex[3] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
     "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

/* The first two splits cut the text into stretches of one kind: numbers, CJK and kana, or the rest. The third one works inside a
 * stretch, so a character of another kind is the end of the text to it. */
#define KIND (DI_UC_NUMBER | DI_UC_CJK)
#define WORD (DI_UC_LETTER | DI_UC_MARK)
#define SIGN (DI_UC_PUNCT | DI_UC_SYMBOL)

struct stretch {
    const unsigned char *end; /* of the text */
    unsigned kind;
};

/* Class of the character at p < end, and its length. */
static inline unsigned char_at(const unsigned char *p, size_t *len)
{
    if (p[0] < 0x80) {
        *len = 1;
        return di_unicode_block[0][p[0]];
    }
    if (p[0] < 0xE0) {
        *len = 2;
        return di_unicode_class((uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F));
    }
    if (p[0] < 0xF0) {
        *len = 3;
        return di_unicode_class((uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F));
    }
    *len = 4;
    return di_unicode_class((uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F));
}

/* The same, but class 0 and length 0 at the end of the stretch. */
static inline unsigned next_class(const struct stretch *t, const unsigned char *p, size_t *len)
{
    *len = 0;
    if (p >= t->end)
        return 0;
    unsigned c = char_at(p, len);
    if ((c & KIND) == t->kind)
        return c;
    *len = 0;
    return 0;
}

/* End of the run of characters that have one of the classes in `mask`. */
static inline const unsigned char *end_of_run(const struct stretch *t, const unsigned char *p, unsigned mask)
{
    size_t len;
    while (next_class(t, p, &len) & mask)
        p += len;
    return p;
}

static inline bool ascii_letter(unsigned char c)
{
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

/* Up to three number characters. */
static const unsigned char *number_group(const unsigned char *p, const unsigned char *end)
{
    struct stretch t = {end, DI_UC_NUMBER};
    size_t len;
    for (int i = 0; i < 3 && next_class(&t, p, &len); i++)
        p += len;
    return p;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at a whitespace character. */
static const unsigned char *whitespace(const struct stretch *t, const unsigned char *s)
{
    const unsigned char *p = s, *last = s, *behind_newline = NULL;
    size_t len;
    unsigned c;
    while ((c = next_class(t, p, &len)) & DI_UC_SPACE) {
        last = p;
        p += len;
        if (c & DI_UC_NEWLINE)
            behind_newline = p;
    }
    if (behind_newline)
        return behind_newline;
    /* the last one of several is left to the word behind the run, unless the stretch ends here */
    return len == 0 || last == s ? p : last;
}

/* Characters that no alternative matches form one piece, up to where a match starts: a letter takes the character before it along. */
static const unsigned char *gap(const struct stretch *t, const unsigned char *p)
{
    for (;;) {
        size_t len, next_len;
        unsigned c = next_class(t, p, &len);
        if (len == 0 || c & (WORD | SIGN | DI_UC_SPACE) || next_class(t, p + len, &next_len) & WORD)
            return p;
        p += len;
    }
}

size_t di_pretoken_length(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    struct stretch t = {s + n, 0};
    size_t len, next_len;
    unsigned c = char_at(s, &len);
    if (c & DI_UC_NUMBER)
        return (size_t)(number_group(s, t.end) - s);
    t.kind = c & KIND;

    const unsigned char *p = s + len;
    if (s[0] < 0x80 && c & SIGN && p < t.end && ascii_letter(*p)) {
        while (p < t.end && ascii_letter(*p))
            p++;
        return (size_t)(p - s);
    }
    if (c & WORD)
        return (size_t)(end_of_run(&t, p, WORD) - s);
    unsigned next = next_class(&t, p, &next_len);
    if (!(c & (DI_UC_NEWLINE | SIGN)) && next & WORD)
        return (size_t)(end_of_run(&t, p + next_len, WORD) - s);
    if (c & SIGN || (s[0] == ' ' && next & SIGN))
        return (size_t)(end_of_run(&t, end_of_run(&t, p, SIGN), DI_UC_NEWLINE) - s);
    if (c & DI_UC_SPACE)
        return (size_t)(whitespace(&t, s) - s);
    return (size_t)(gap(&t, p) - s);
}
