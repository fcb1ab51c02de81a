#include "base/toml.h"

static di_status look(void *ctx, const struct di_toml_item *item, di_error *err)
{
    size_t *bytes = ctx;
    (void)err;
    *bytes += strlen(item->section) + strlen(item->key) + strlen(item->where);
    for (size_t i = 0; i < item->count; i++)
        *bytes += strlen(item->values[i].text);
    return DI_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct di_arena arena;
    di_error err = {0};
    size_t bytes = 0;
    di_arena_init(&arena);
    di_status status = di_toml_each((struct di_str){(const char *)data, size}, "f", &arena, look, &bytes, &err);
    if (status != DI_OK && err.message[0] == 0)
        __builtin_trap();
    di_arena_fini(&arena);
    return 0;
}
