/* Philox 4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): a counter goes in, four random words come out.
 * No state exists that could be lost, shared or rolled back. Any thread. */
#ifndef DI_BASE_PHILOX_H
#define DI_BASE_PHILOX_H

#include <stdint.h>

struct di_philox {
    uint32_t w[4];
};

static inline struct di_philox di_philox(uint64_t key, struct di_philox c)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c.w[0], b = (uint64_t)0xCD9E8D57u * c.w[2];
        c = (struct di_philox){{(uint32_t)(b >> 32) ^ c.w[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w[3] ^ k1, (uint32_t)a}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

#endif
