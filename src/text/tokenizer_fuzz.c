/* Any bytes as tokenizer.json, or as the parts of one that matter: no crash, and a tokenizer that was accepted gives back every text.
 * The first byte says which: even, the whole file; odd, three parts separated by 0 bytes, put behind the 256 single-byte entries, into the
 * merges and into the added tokens. */
#include "base/json.h"
#include "base/utf8.h"
#include "text/pretokenizer.h"
#include "text/token_map.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define NEED(cond)   \
    do {             \
        if (!(cond)) \
            abort(); \
    } while (0)

static struct di_str next_part(struct di_str *s)
{
    const char *zero = s->n ? memchr(s->p, 0, s->n) : NULL;
    struct di_str part = {s->p, zero ? (size_t)(zero - s->p) : s->n};
    s->p += part.n + (zero != NULL);
    s->n -= part.n + (zero != NULL);
    return part;
}

static void write_file(struct di_buf *b, struct di_str parts)
{
    di_buf_adds(b, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 3; i++) {
        di_buf_adds(b, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":");
        di_json_write_string(b, di_str_c(di_pretoken_regex[i]));
        di_buf_adds(b, "}},");
    }
    di_buf_adds(b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
                   "\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned i = 0; i < 256; i++) {
        struct di_buf c = {0};
        di_tokenizer_add_byte_char(&c, (unsigned char)i);
        di_json_write_string(b, di_buf_str(&c));
        di_buf_addf(b, i < 255 ? ":%u," : ":%u", i);
        di_buf_fini(&c);
    }
    di_buf_addv(b, next_part(&parts));
    di_buf_adds(b, "},\"merges\":[");
    di_buf_addv(b, next_part(&parts));
    di_buf_adds(b, "]},\"added_tokens\":[");
    di_buf_addv(b, next_part(&parts));
    di_buf_adds(b, "]}");
}

static void use(const struct di_tokenizer *t, struct di_str text)
{
    for (unsigned flags = 0; flags < 2; flags++) {
        struct di_ids ids = {0};
        struct di_buf back = {0};
        NEED(di_tokenizer_encode(t, text, flags, &ids, NULL) == DI_OK);
        for (size_t i = 0; i < ids.n; i++)
            NEED(di_tokenizer_has(t, ids.v[i]) && (flags || !di_tokenizer_is_added(t, ids.v[i])));
        NEED(di_tokenizer_decode(t, ids.v, ids.n, &back, NULL) == DI_OK);
        NEED(di_str_eq(di_buf_str(&back), text));
        di_ids_fini(&ids);
        di_buf_fini(&back);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct di_buf file = {0}, text = {0};
    struct di_tokenizer *t;
    di_error err = {0};
    if (n == 0)
        return 0;
    struct di_str rest = {(const char *)data + 1, n - 1};
    if (data[0] & 1)
        write_file(&file, rest);
    else
        di_buf_addv(&file, rest);
    di_status status = di_tokenizer_from_json(di_buf_str(&file), &t, &err);
    if (status == DI_OK) {
        int32_t size = di_tokenizer_size(t), distinct, *map = malloc((size_t)size * sizeof *map);
        di_utf8_add_lossy(&text, rest);
        use(t, di_buf_str(&text));
        for (int32_t id = 0; id < size; id++) { /* what one token spells must come back too */
            if (id > 400 && id % 97)
                continue;
            di_buf_clear(&text);
            di_utf8_add_lossy(&text, di_tokenizer_token_bytes(t, id));
            use(t, di_buf_str(&text));
        }
        if (size < 5000)
            di_token_map_build(t, map, size, &distinct, NULL);
        free(map);
        di_tokenizer_destroy(t);
    } else {
        NEED(!t && err.code == status && err.message[0]);
    }
    di_buf_fini(&file);
    di_buf_fini(&text);
    return 0;
}
