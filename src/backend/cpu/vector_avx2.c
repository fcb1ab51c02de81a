/* The fast non-matrix ops, compiled for AVX2 with FMA, F16C and BMI2. */
#include "backend/cpu/vector_attention.h"
#include "backend/cpu/vector_cache.h"
#include "backend/cpu/vector_dense.h"
#include "backend/cpu/vector_index.h"
#include "backend/cpu/vector_sample.h"
#include "backend/cpu/vector_table.h"

void di_cpu_vector_ops_avx2(struct di_ops *ops)
{
    vector_table(ops);
}
