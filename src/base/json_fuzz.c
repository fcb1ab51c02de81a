/* The JSON reader and its writers: no crash on any bytes; what was read and written compactly reads again as the same value. */
#include "base/json.h"

#include <stdlib.h>

static bool same(const struct di_json *a, const struct di_json *b)
{
    if (a->type != b->type || a->count != b->count || a->boolean != b->boolean || !di_str_eq(a->key, b->key) ||
        !di_str_eq(a->text, b->text))
        return false;
    const struct di_json *x = a->child, *y = b->child;
    for (; x && y; x = x->next, y = y->next)
        if (!same(x, y))
            return false;
    return !x && !y;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct di_arena arena;
    struct di_json *v, *again;
    struct di_buf compact = {0}, spaced = {0};
    di_error err = {0};
    di_arena_init(&arena);
    if (di_json_parse((struct di_str){(const char *)data, size}, NULL, &arena, &v, &err) == DI_OK) {
        di_json_write_compact(&compact, v);
        di_json_write_spaced(&spaced, v);
        if (di_json_parse(di_buf_str(&compact), NULL, &arena, &again, &err) != DI_OK || !same(v, again))
            abort();
        if (di_json_parse(di_buf_str(&spaced), NULL, &arena, &again, &err) != DI_OK)
            abort();
    } else if (err.message[0] == 0) {
        abort();
    }
    di_buf_fini(&compact);
    di_buf_fini(&spaced);
    di_arena_fini(&arena);
    return 0;
}
