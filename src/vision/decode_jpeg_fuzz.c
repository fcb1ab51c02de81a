#include "vision/fuzz_decoder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return di_fuzz_decoder(DI_PICTURE_JPEG, data, size);
}
