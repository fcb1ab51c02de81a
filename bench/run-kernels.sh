#!/bin/sh
# Matrix kernels against the machine's own floors, and oneDNN's bf16 matmul in the same run: bench/run-kernels.sh [build directory] [threads]
set -eu
build=${1:-build}
threads=${2:-$(nproc)}
echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) processors"
for isa in avx2 avx512 avx512bf16 amx; do
    echo
    "$build/deepinfer" bench --suite kernels --cpu-isa "$isa" --threads "$threads" || true # an instruction set that this machine lacks
done
if [ -e /usr/include/dnnl.h ]; then
    echo
    ${CC:-cc} -std=c11 -O2 -D_POSIX_C_SOURCE=200809L -o "$build/onednn_gemm" "$(dirname "$0")/onednn_gemm.c" -ldnnl
    OMP_NUM_THREADS=$threads "$build/onednn_gemm" "$threads"
fi
