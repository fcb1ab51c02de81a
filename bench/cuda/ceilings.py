#!/usr/bin/env python3
"""The ceilings of a run as torch sees them, on random data: `--bf16 TFLOP/s` of an 8192 x 8192 x 8192 product (cuBLASLt), `--copy GB/s` of a device
copy of 8.6 GB (bytes read and written). Printed as arguments of the lab."""
import statistics

import torch


def median_ms(f, repeats):
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        f()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
tflops = 2 * 8192**3 / median_ms(lambda: a @ b, 20) * 1e-9
x = torch.randint(0, 255, (4 << 30,), device="cuda", dtype=torch.uint8)
y = torch.empty_like(x)
print(f"--bf16 {tflops:.1f} --copy {2 * (4 << 30) / median_ms(lambda: y.copy_(x), 20) * 1e-6:.1f}")
