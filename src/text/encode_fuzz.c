/* Any text through the nano tokenizer (run from the root of the repository): ill-formed text is refused, everything else comes back whole,
 * and the pieces of the pre-tokenizer cover the text with whole characters. */
#include "base/utf8.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define NEED(cond)   \
    do {             \
        if (!(cond)) \
            abort(); \
    } while (0)

static void check_pieces(struct di_str s)
{
    for (size_t i = 0, len; i < s.n; i += len) {
        len = di_pretoken_length(s.p + i, s.n - i);
        NEED(len > 0 && len <= s.n - i);
        NEED(di_utf8_valid((struct di_str){s.p + i, len}, NULL));
    }
}

static void round_trip(const struct di_tokenizer *t, struct di_str s, unsigned flags)
{
    struct di_ids ids = {0};
    struct di_buf back = {0};
    struct di_utf8_stream stream = {0};
    NEED(di_tokenizer_encode(t, s, flags, &ids, NULL) == DI_OK);
    NEED(ids.n <= s.n);
    for (size_t i = 0; i < ids.n; i++) {
        size_t before = back.n;
        NEED(flags || !di_tokenizer_is_added(t, ids.v[i]));
        di_utf8_stream_push(&stream, di_tokenizer_token_bytes(t, ids.v[i]), &back);
        NEED(back.n == before || di_utf8_valid((struct di_str){back.p + before, back.n - before}, NULL));
    }
    di_utf8_stream_end(&stream, &back);
    NEED(di_str_eq(di_buf_str(&back), s));
    di_ids_fini(&ids);
    di_buf_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct di_tokenizer *t;
    di_error err = {0};
    if (!t && di_tokenizer_load("models/nano", &t, &err) != DI_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        exit(1);
    }
    struct di_str raw = {(const char *)data, n};
    struct di_buf text = {0};
    struct di_ids ids = {0};
    if (!di_utf8_valid(raw, NULL))
        NEED(di_tokenizer_encode(t, raw, DI_TOKENIZER_ADDED, &ids, NULL) == DI_ERR_INVALID && ids.n == 0);
    di_ids_fini(&ids);
    di_utf8_add_lossy(&text, raw);
    check_pieces(di_buf_str(&text));
    round_trip(t, di_buf_str(&text), DI_TOKENIZER_PLAIN);
    round_trip(t, di_buf_str(&text), DI_TOKENIZER_ADDED);
    di_buf_fini(&text);
    return 0;
}
