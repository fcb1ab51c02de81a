/* Inside of struct di_token_counts, for the sampler. */
#ifndef DI_SAMPLE_COUNTS_H
#define DI_SAMPLE_COUNTS_H

#include "sample/sampler.h"

#define DI_COUNT_IN_PROMPT 0x80000000u
#define DI_COUNT_LISTED 0x40000000u
#define DI_COUNT_MASK 0x3FFFFFFFu /* occurrences in the output; a context is far shorter than 2^30 */

struct di_token_counts {
    size_t vocab;
    uint32_t *word;   /* [vocab] flags and count */
    int32_t *touched; /* [vocab] ids whose word has DI_COUNT_LISTED, in order of their first appearance */
    size_t n_touched;
};

#endif
