/* The fast non-matrix ops, compiled for AVX-512 (F, BW, DQ, VL, VBMI, VNNI). */
#include "backend/cpu/vector_attention.inc"
#include "backend/cpu/vector_cache.inc"
#include "backend/cpu/vector_dense.inc"
#include "backend/cpu/vector_index.inc"
#include "backend/cpu/vector_sample.inc"
#include "backend/cpu/vector_table.inc"

void di_cpu_vector_ops_avx512(struct di_ops *ops)
{
    vector_table(ops);
}
