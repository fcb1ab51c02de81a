#!/usr/bin/env python3
"""What torch needs for rows of 129,280 logits: the comparators of the sampler. Medians of 20, two sets of rows in turn."""
import statistics

import torch

V = 129280


def median_us(f, sets):
    times = []
    for i in range(26):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        f(sets[i % len(sets)])
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[6:])


def top_p(x):
    v, i = x.sort(dim=-1, descending=True)
    p = v.softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p > 0.95, 0)
    return i.gather(1, torch.multinomial(p, 1))


def gumbel(x):
    return (x.softmax(-1) / torch.empty_like(x).exponential_()).argmax(-1)


for m in (1, 16, 64, 256):
    sets = [2 * torch.randn(m, V, device="cuda") for _ in range(2 if m == 256 else 4)]
    for name, f in {
        "argmax": lambda x: x.argmax(-1),
        "softmax, multinomial": lambda x: torch.multinomial(x.softmax(-1), 1),
        "softmax / exponential, argmax": gumbel,
        "topk 50": lambda x: x.topk(50),
        "sort": lambda x: x.sort(dim=-1, descending=True),
        "sort, softmax, cumsum, multinomial (top-p)": top_p,
        "log_softmax, topk 20": lambda x: x.log_softmax(-1).topk(20),
    }.items():
        print(f"torch {name}, m={m}: {median_us(f, sets):.1f} us", flush=True)
