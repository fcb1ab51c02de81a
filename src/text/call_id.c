#include "text/call_id.h"

#include <stdio.h>

void di_call_id_write(char id[DI_CALL_ID_BYTES], size_t index, bool empty_thinking, const unsigned char random[DI_CALL_ID_RANDOM])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned shown = index < 100000 ? (unsigned)index : 99999;
    int n = snprintf(id, DI_CALL_ID_BYTES, "call_%02u_%s", shown, empty_thinking ? "ET_" : "");
    for (int i = 0; i < DI_CALL_ID_RANDOM; i++) /* 256 is no multiple of 62: at least 5.6 bits each */
        id[n + i] = digits[random[i] % 62];
    id[n + DI_CALL_ID_RANDOM] = 0;
}
