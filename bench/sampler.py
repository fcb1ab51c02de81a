#!/usr/bin/env python3
"""What a user would write instead of `deepinfer bench --suite sampler`: the same rows through numpy, and through torch where it is installed,
on one thread. usage: bench/sampler.py [ROUNDS]
"""
import os
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    torch = None

VOCAB, ROWS = 129280, 64
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7


def numpy_softmax(x, temperature=1.0):
    p = numpy.exp((x - x.max()) / temperature)
    return p / p.sum()


def numpy_draw(p):
    return min(int(numpy.searchsorted(numpy.cumsum(p), numpy.random.random())), len(p) - 1)


def numpy_top_p(x, share):
    p = numpy_softmax(x)
    order = numpy.argsort(-p)
    ordered = p[order]
    keep = int(numpy.searchsorted(numpy.cumsum(ordered), share)) + 1
    return order[numpy_draw(ordered[:keep] / ordered[:keep].sum())]


def numpy_top_k(x, k, share):
    best = numpy.argpartition(-x, k)[:k]
    return best[numpy_top_p(x[best], share)]


def numpy_logprobs(x, n):
    log = x - x.max()
    log -= numpy.log(numpy.exp(log).sum())
    best = numpy.argpartition(-x, n)[:n]
    return x.argmax(), log[best[numpy.argsort(-x[best])]]


def torch_top_p(x, share):
    p, order = torch.softmax(x, -1).sort(descending=True)
    p[p.cumsum(-1) - p > share] = 0
    return order[torch.multinomial(p, 1)]


def torch_top_k(x, k, share):
    best, order = x.topk(k)
    return order[torch_top_p(best, share)]


CASES = [
    ("greedy", lambda x: x.argmax(), lambda x: x.argmax()),
    ("greedy, logprobs 20", lambda x: numpy_logprobs(x, 20), lambda x: (x.argmax(), torch.log_softmax(x, -1).topk(20))),
    ("T=1", lambda x: numpy_draw(numpy_softmax(x)), lambda x: torch.multinomial(torch.softmax(x, -1), 1)),
    ("top-p .95", lambda x: numpy_top_p(x, 0.95), lambda x: torch_top_p(x, 0.95)),
    ("top-k 50, top-p .95", lambda x: numpy_top_k(x, 50, 0.95), lambda x: torch_top_k(x, 50, 0.95)),
]


def median_us(function, rows):
    times = []
    for _ in range(ROUNDS):
        for x in rows:
            start = time.thread_time()
            function(x)
            times.append(time.thread_time() - start)
    return sorted(times)[len(times) // 2] * 1e6


def main():
    random = numpy.random.default_rng(1)
    rows = list((2 * random.standard_normal((ROWS, VOCAB))).astype(numpy.float32))
    tensors = [torch.from_numpy(x) for x in rows] if torch else []
    print(f"numpy {numpy.__version__}, torch {torch.__version__ if torch else 'not installed'}, one thread, {VOCAB} ids, N(0, 2)\n")
    print("| row                    | numpy us | torch us |\n|---|---:|---:|")
    for name, with_numpy, with_torch in CASES:
        torch_us = f"{median_us(with_torch, tensors):8.0f}" if torch else "       –"
        print(f"| {name:22} | {median_us(with_numpy, rows):8.0f} | {torch_us} |")


if __name__ == "__main__":
    main()
