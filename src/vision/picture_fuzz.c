/* Headers of all formats: what is accepted is within the limits, whatever else the file is. */
#include "vision/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct di_picture_limits *l = &di_picture_limits_default;
    struct di_picture_rules rules = {.apply_exif = true};
    struct di_picture p;
    di_error err = {0};
    di_status status = di_picture_read((struct di_str){(const char *)data, size}, &rules, l, &p, &err);
    if (status != DI_OK) {
        if (err.message[0] == 0)
            __builtin_trap();
        return 0;
    }
    if (p.width < 1 || p.height < 1 || p.width > l->side || p.height > l->side || p.width * p.height > l->pixels || p.scans > l->scans ||
        p.decode_bytes > l->decode_bytes || p.frame_x + p.frame_width > p.stored_width || p.frame_y + p.frame_height > p.stored_height ||
        p.payload + p.payload_bytes > size || p.palette + 3 * (size_t)p.palette_colours > size || p.orientation < 1 || p.orientation > 8)
        __builtin_trap();
    return 0;
}
