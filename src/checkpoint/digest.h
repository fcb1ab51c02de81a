/* A name for what a checkpoint computes, for the keys of cached content: SHA-256 over config.json, tokenizer.json (if there is one: it
 * decides the engram hashes) and the shards, each with its size. Names and places of files do not count, so a copy elsewhere has the same
 * digest.
 *
 * Up to DI_DIGEST_WHOLE bytes of shards every byte counts. A larger checkpoint would take minutes at every start, so of each of its shards
 * the header (all names, types, shapes and places of tensors) and DI_DIGEST_PAGES pages of 4 KiB count, spread evenly over the file, the
 * last one at its end. Training changes all weights, and quantising again changes sizes: both are seen. A few bytes patched in a large
 * checkpoint are probably not: whoever does that must not bring along caches of the original. */
#ifndef DI_CHECKPOINT_DIGEST_H
#define DI_CHECKPOINT_DIGEST_H

#include "checkpoint/checkpoint.h"

#define DI_DIGEST_BYTES 32
#define DI_DIGEST_WHOLE ((uint64_t)1 << 30)
#define DI_DIGEST_PAGES 64

/* Reads the files, not the mapping. `whole`: shards beyond so many bytes in all are sampled; DI_DIGEST_WHOLE, but for tests. DI_ERR_IO,
 * DI_ERR_MEMORY. Any thread. */
di_status di_checkpoint_digest(const struct di_checkpoint *ck, uint64_t whole, uint8_t out[DI_DIGEST_BYTES], di_error *err);
/* 64 lower-case digits and a 0 byte. */
void di_digest_hex(const uint8_t digest[DI_DIGEST_BYTES], char hex[2 * DI_DIGEST_BYTES + 1]);

#endif
