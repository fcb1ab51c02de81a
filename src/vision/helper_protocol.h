/* What the pool and its helper processes say to each other: datagrams over a pair of sockets, both ends of the same program (the greeting
 * names its decoders).
 * Pictures and canvases are not in them but in two memory files, whose descriptors go with the order. */
#ifndef DI_VISION_HELPER_PROTOCOL_H
#define DI_VISION_HELPER_PROTOCOL_H

#include "vision/render.h"

#define DI_HELPER_FD 3 /* the helper's end of the socket */

/* The helper's first word. */
struct di_helper_greeting {
    char recipe[160]; /* of the default rules: names all decoders */
    bool confined;    /* the system call filter is in force */
};

struct di_helper_order {
    uint64_t picture_bytes, canvas_bytes;
    struct di_render_order render;
};

struct di_helper_reply {
    di_status status;
    uint32_t pixel_crc;
    di_error error;
};

#endif
