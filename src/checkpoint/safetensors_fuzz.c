/* Any bytes as a safetensors file: no crash, and what is accepted lies inside the image and can be found by name. */
#include "checkpoint/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint8_t sink; /* keeps the reads */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct di_safetensors st;
    di_error err = {0};
    uint8_t *image = di_malloc_aligned(n);
    if (!image)
        return 0;
    if (n)
        memcpy(image, data, n);
    if (di_safetensors_parse(image, n, "fuzz", &st, &err) == DI_OK) {
        for (size_t i = 0; i < st.count; i++) {
            const struct di_tensor *t = &st.tensors[i];
            for (size_t k = 0; k < t->bytes; k++)
                sink ^= t->data[k];
            if ((uintptr_t)t->data % di_dtype_bytes(t->dtype) || di_safetensors_find(&st, t->name.p) != t)
                abort();
        }
        di_safetensors_close(&st);
    } else if (!err.message[0]) {
        abort();
    }
    di_free_aligned(image);
    return 0;
}
