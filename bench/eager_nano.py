#!/usr/bin/env python3
"""Decode and prefill of the nano model against an eager PyTorch forward of the same network, in turns on the same cores.

    bench/eager_nano.py [--binary build/deepinfer] [--model models/nano] [--rounds 5] [--dtype float32] [--threads 1,2] [--json FILE]

The PyTorch side is written as modelling code usually is: weights dequantised at load, one op after another, caches that grow by torch.cat, a
loop over the experts that were hit. It has none of the model's roundings and quantisers; its logits are first compared with those of
`deepinfer logits --numerics f32-noquant`, so that both are the same network. Needs bench/requirements.txt.
"""
import argparse
import glob
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


# ---------------------------------------------------------------- weights


def load_weights(directory, dtype):
    raw, out = {}, {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with safe_open(path, "pt") as f:
            for name in f.keys():
                if name.startswith(("layers.", "embed.", "head.", "norm.")):
                    raw[name] = f.get_tensor(name)
    for name, w in raw.items():
        if name.endswith(".scale"):
            continue
        if w.dtype == torch.int8:  # two E2M1 codes in a byte, even column low
            b = w.view(torch.uint8).long()
            w = torch.stack((E2M1[b & 15], E2M1[b >> 4]), -1).flatten(-2)
        scale = raw.get(name[: -len("weight")] + "scale") if name.endswith(".weight") else None
        w = w.float()
        if scale is not None:
            s = torch.exp2(scale.view(torch.uint8).float() - 127)
            s = s.repeat_interleave(w.shape[0] // s.shape[0], 0).repeat_interleave(32, 1)
            w = w * s
        keep = "hc_" in name or "gate.bias" in name or name.endswith("sink")
        out[name] = w if keep else w.to(dtype)
    return out


def rms_norm(x, weight=None, eps=1e-20):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight.float() if weight is not None else y).to(x.dtype)


# ---------------------------------------------------------------- position


def rope_frequencies(t, compress):
    dim = t["qk_rope_head_dim"]
    base = t["compress_rope_theta"] if compress else t["rope_theta"]
    power = torch.tensor([base ** (2 * i / dim) for i in range(dim // 2)], dtype=torch.float32)
    g = 1 / power
    if not compress:
        return g
    s = t["rope_scaling"]
    turns = lambda r: dim * math.log(s["original_max_position_embeddings"] / (r * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(turns(s["beta_fast"])), 0), min(math.ceil(turns(s["beta_slow"])), dim - 1)
    m = 1 - ((torch.arange(dim // 2) - low) / (high - low)).clamp(0, 1)
    return g / s["factor"] * (1 - m) + g * m


def rotate(x, cos, sin):
    """Interleaved pairs of the last channels of x [..., d]; cos and sin broadcast to [..., rope / 2]."""
    half = cos.shape[-1]
    rest, tail = x[..., : -2 * half], x[..., -2 * half :].float().unflatten(-1, (half, 2))
    a, b = tail[..., 0], tail[..., 1]
    tail = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((rest, tail.to(x.dtype)), -1)


# ---------------------------------------------------------------- engram


class EngramHash:
    def __init__(self, t, token_map):
        self.map, self.pad = token_map, int(token_map[t["engram_pad_token_id"]])
        self.n, heads = t["engram_max_ngram_size"], t["engram_n_heads"]
        cur, self.tables = t["engram_vocab_size"] - 1, {}
        for layer in t["engram_layer_ids"]:
            primes = []
            while len(primes) < (self.n - 1) * heads:
                cur += 1
                if all(cur % d for d in range(2, math.isqrt(cur) + 1)):
                    primes.append(cur)
            bound = (2**63 - 1) // t["engram_compressed_vocab_size"] // 2
            m = np.random.default_rng(10007 * layer).integers(0, bound, self.n) * 2 + 1
            offsets = np.cumsum([0] + primes[:-1])
            self.tables[layer] = (torch.tensor(m), torch.tensor(primes).view(self.n - 1, heads), torch.tensor(offsets).view(self.n - 1, heads))

    def rows(self, layer, ids, start):
        """Table rows [T, columns] of positions start.. of ids (all tokens so far)."""
        m, primes, offsets = self.tables[layer]
        c = F.pad(self.map[ids], (self.n - 1, 0), value=self.pad)
        hashed, out = c[self.n - 1 :] * m[0], []
        for i in range(1, self.n):
            hashed = hashed ^ (c[self.n - 1 - i : len(c) - i] * m[i])
            out.append(hashed[start:, None] % primes[i - 1] + offsets[i - 1])
        return torch.cat(out, -1)


# ---------------------------------------------------------------- layers


class Cache:
    def __init__(self, layers):
        self.window = [None] * layers  # [tokens of the window, d]
        self.latent = {}               # of KV sources: [groups, d]
        self.keys = {}                 # of KV sources: [groups, index dim]
        self.pending = {}              # ratio 2: kv and gate of the odd token
        self.length = 0


def grow(old, new):
    return new if old is None else torch.cat((old, new), 0)


class Layer:
    def __init__(self, model, l):
        t = model.t
        prefix = f"layers.{l}."
        self.w = {k[len(prefix) :].removesuffix(".weight"): v for k, v in model.weights.items() if k.startswith(prefix)}
        self.l, self.t, self.model = l, t, model
        self.ratio = t["compress_ratios"][l]
        self.kv_source = max((s for s in t["kv_source_layer_ids"] if s <= l), default=None)
        self.is_kv_source, self.is_index_source = l in t["kv_source_layer_ids"], l in t["index_source_layer_ids"]
        if l in t["engram_layer_ids"]:
            self.qk = self.w["engram.q_weight"].float() * self.w["engram.k_weight"].float()

    def engram(self, x, ids, start):
        w = self.w
        e = w["engram.embed"][self.model.hash.rows(self.l, ids, start)].flatten(1)
        kv = F.linear(e, w["engram.wkv"]).unflatten(-1, (x.shape[1] + 1, -1))
        keys, value = kv[:, :-1].float(), kv[:, -1:]
        xf = x.float()
        dot = (xf * self.qk * keys).sum(-1)
        dot = dot * torch.rsqrt(xf.pow(2).mean(-1) + 1e-20) * torch.rsqrt(keys.pow(2).mean(-1) + 1e-20) / math.sqrt(x.shape[-1])
        gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
        return (xf + gate[..., None] * value.float()).to(x.dtype)

    def mix(self, x, site):
        w, t, s = self.w, self.t, x.shape[1]
        flat = x.flatten(1).float()
        m = F.linear(flat, w[f"hc_{site}_fn"]) * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + 1e-20)
        base, scale, eps = w[f"hc_{site}_base"], w[f"hc_{site}_scale"], t["hc_eps"]
        pre = torch.sigmoid(m[:, :s] * scale[0] + base[:s]) + eps
        post = 2 * torch.sigmoid(m[:, s : 2 * s] * scale[1] + base[s : 2 * s])
        comb = (m[:, 2 * s :] * scale[2] + base[2 * s :]).unflatten(-1, (s, s)).softmax(-1) + eps
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
        for _ in range(t["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
            comb = comb / (comb.sum(-2, keepdim=True) + eps)
        return pre, post, comb

    def collapse(self, x, pre):
        return (pre[..., None] * x.float()).sum(1).to(x.dtype)

    def expand(self, x, out, post, comb):
        mixed = torch.einsum("tjk,tjd->tkd", comb, x.float())
        return (post[..., None] * out.float()[:, None] + mixed).to(x.dtype)

    def compress(self, n, positions, cache):
        w, l, first = self.w, self.l, cache.length
        kv = F.linear(n, w["attn.compressor.wkv"])
        if self.ratio == 2:
            kv, gate = kv.float(), F.linear(n, w["attn.compressor.wgate"]).float()
            if l in cache.pending:
                kv, gate = torch.cat((cache.pending[l][0], kv)), torch.cat((cache.pending[l][1], gate))
                first -= 1
                del cache.pending[l]
            if len(kv) % 2:
                cache.pending[l] = (kv[-1:], gate[-1:])
            pairs = len(kv) // 2
            if pairs == 0:
                return
            a = gate[: 2 * pairs].unflatten(0, (pairs, 2)).softmax(1)
            kv = (a * kv[: 2 * pairs].unflatten(0, (pairs, 2))).sum(1).to(n.dtype)
        latent = rms_norm(kv, w["attn.compressor.norm"])
        cos, sin = self.model.angles(torch.arange(len(latent)) * self.ratio + first, True)
        key = rms_norm(F.linear(latent, w["attn.indexer.wk"]), w["attn.indexer.k_norm"])
        cache.keys[l] = grow(cache.keys.get(l), rotate(key, cos, sin))
        cache.latent[l] = grow(cache.latent.get(l), rotate(latent, cos, sin))

    def top(self, scores, k):
        """The k largest; of equals the first, which torch.topk does not promise, if `exact`."""
        if self.model.exact:
            return scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return scores.topk(k, -1).indices

    def select(self, n, qr, cos, sin, positions, cache, shared):
        """Mask [T, groups] of the groups that this layer and those behind it attend to."""
        w, t = self.w, self.t
        keys = cache.keys.get(self.kv_source)
        if keys is None:
            shared["selected"] = None
            return
        groups = len(keys)
        q = F.linear(qr, w["attn.indexer.wq_b"]).unflatten(-1, (t["index_n_heads"], t["index_head_dim"]))
        q = rotate(q, cos[:, None], sin[:, None])
        weight = F.linear(n, w["attn.indexer.weights_proj"]).float() / math.sqrt(t["index_head_dim"] * t["index_n_heads"])
        scores = (torch.einsum("thd,gd->thg", q, keys).float().relu() * weight[..., None]).sum(1)
        visible = (positions + 1) // self.ratio
        scores = scores.masked_fill(torch.arange(groups)[None] >= visible[:, None], -math.inf)
        first, size = t["candidate_source_layer_id"], t["candidate_block_size"]
        if self.l > first >= 0:
            scores = scores.masked_fill(~shared["candidates"], -math.inf)
        elif self.l == first:
            blocks = F.pad(scores, (0, -groups % size), value=-math.inf).unflatten(-1, (-1, size)).amax(-1)
            blocks.scatter_(1, ((visible - 1) // size)[:, None], math.inf)
            top = self.top(blocks, min(t["candidate_topk_blocks"], blocks.shape[1]))
            chosen = torch.zeros_like(blocks, dtype=torch.bool).scatter_(1, top, True) & (blocks > -math.inf)
            shared["candidates"] = chosen.repeat_interleave(size, 1)[:, :groups]
        top = self.top(scores, min(t["index_topk"], groups))
        shared["selected"] = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, top, True) & (scores > -math.inf)

    def attention(self, n, positions, cache, shared):
        w, t, l = self.w, self.t, self.l
        heads, d = t["num_attention_heads"], t["head_dim"]
        cos, sin = self.model.angles(positions, self.ratio > 0)
        qr = rms_norm(F.linear(n, w["attn.wq_a"]), w["attn.q_norm"])
        q = rotate(F.linear(qr, w["attn.wq_b"]).unflatten(-1, (heads, d)), cos[:, None], sin[:, None])
        kv = rotate(rms_norm(F.linear(n, w["attn.wkv"]), w["attn.kv_norm"]), cos, sin)
        if self.is_kv_source:
            self.compress(n, positions, cache)
        if self.is_index_source:
            self.select(n, qr, cos, sin, positions, cache, shared)
        keys = grow(cache.window[l], kv)
        cache.window[l] = keys[-(t["sliding_window"] - 1) :]
        at = torch.arange(len(keys)) + int(positions[-1]) + 1 - len(keys)
        seen = (at[None] <= positions[:, None]) & (at[None] > positions[:, None] - t["sliding_window"])
        if self.ratio and shared["selected"] is not None:
            keys = torch.cat((keys, cache.latent[self.kv_source]))
            seen = torch.cat((seen, shared["selected"]), -1)
        scores = torch.einsum("thd,kd->htk", q, keys).float() / math.sqrt(d)
        scores = scores.masked_fill(~seen, -math.inf)
        sink = w["attn.attn_sink"][:, None, None].expand(-1, len(positions), 1)
        p = torch.cat((scores, sink), -1).softmax(-1)[..., :-1].to(keys.dtype)
        o = rotate(torch.einsum("htk,kd->thd", p, keys), cos[:, None], -sin[:, None])
        groups = t["o_groups"]
        a = torch.einsum("tgk,gnk->tgn", o.flatten(1).unflatten(-1, (groups, -1)), w["attn.wo_a"].unflatten(0, (groups, -1)))
        return F.linear(a.flatten(1), w["attn.wo_b"])

    def expert(self, name, x, weight=None):
        w, limit = self.w, self.t["swiglu_limit"]
        up = F.linear(x, w[name + ".w3"]).float().clamp(-limit, limit)
        h = F.silu(F.linear(x, w[name + ".w1"]).float().clamp_max(limit)) * up
        h = h if weight is None else h * weight
        return F.linear(h.to(x.dtype), w[name + ".w2"]).float()

    def moe(self, x):
        w, t = self.w, self.t
        score = F.softplus(F.linear(x.float(), w["ffn.gate"].float())).sqrt()
        ids = (score + w["ffn.gate.bias"]).topk(t["num_experts_per_tok"], -1).indices
        weight = score.gather(-1, ids)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * t["routed_scaling_factor"]
        y = torch.zeros(x.shape, dtype=torch.float32)
        hit = F.one_hot(ids, t["n_routed_experts"]).permute(2, 1, 0)
        for e in hit.sum((1, 2)).nonzero().flatten().tolist():
            slot, row = torch.where(hit[e])
            y.index_add_(0, row, self.expert(f"ffn.experts.{e}", x[row], weight[row, slot, None]))
        return (y + self.expert("ffn.shared_experts", x)).to(x.dtype)

    def forward(self, x, pre, ids, positions, cache, shared):
        if self.l in self.t["engram_layer_ids"]:
            x = self.engram(x, ids, int(positions[0]))
        pre_attn, post, comb = self.mix(x, "attn")
        n = rms_norm(self.collapse(x, pre), self.w["attn_norm"])
        x = self.expand(x, self.attention(n, positions, cache, shared), post, comb)
        pre_ffn, post, comb = self.mix(x, "ffn")
        n = rms_norm(self.collapse(x, pre_attn), self.w["ffn_norm"])
        return self.expand(x, self.moe(n), post, comb), pre_ffn


class Model:
    def __init__(self, directory, token_map, dtype, exact=False):
        with open(os.path.join(directory, "config.json")) as f:
            self.t = json.load(f)["text_config"]
        self.exact = exact
        self.weights = load_weights(directory, dtype)
        self.hash = EngramHash(self.t, token_map)
        self.freq = {c: rope_frequencies(self.t, c) for c in (False, True)}
        self.layers = [Layer(self, l) for l in range(self.t["num_hidden_layers"])]

    def angles(self, positions, compress):
        a = positions[:, None].float() * self.freq[compress]
        return a.cos(), a.sin()

    def new_cache(self):
        return Cache(len(self.layers))

    @torch.inference_mode()
    def forward(self, ids, cache, last_only=True):
        """Logits of the tokens of ids that the cache does not hold yet."""
        w, streams, shared = self.weights, self.t["hc_mult"], {}
        positions = torch.arange(cache.length, len(ids))
        x = w["embed.weight"][ids[cache.length :]][:, None].repeat(1, streams, 1)
        pre = torch.zeros(len(positions), streams)
        pre[:, 0] = 1
        for layer in self.layers:
            x, pre = layer.forward(x, pre, ids, positions, cache, shared)
        cache.length = len(ids)
        if last_only:
            x, pre = x[-1:], pre[-1:]
        n = rms_norm((pre[..., None] * x.float()).sum(1).to(x.dtype), w["norm.weight"])
        return F.linear(n, w["head.weight"]).float()


# ---------------------------------------------------------------- comparison


def token_map(directory):
    for path in (os.path.join(directory, "vectors.safetensors"), os.path.join(ROOT, "tests/data/vectors/nano_text/vectors.safetensors")):
        if os.path.exists(path):
            with safe_open(path, "pt") as f:
                return f.get_tensor("engram_token_map").long()
    raise SystemExit("no token map")


def check(args, ids):
    """Largest difference of logits, whole prompt and token by token."""
    model = Model(args.model, token_map(args.model), torch.float32, exact=True)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "logits.safetensors")
        subprocess.run([args.binary, "logits", "--model", args.model, "--ids", ",".join(map(str, ids.tolist())), "--output", path, "--quiet",
                        "--numerics", "f32-noquant", "--cpu-isa", "ref"], check=True)
        with safe_open(path, "pt") as f:
            expected = f.get_tensor("logits")
    whole = model.forward(ids, model.new_cache(), last_only=False)
    cache, half = model.new_cache(), len(ids) - 20
    steps = [model.forward(ids[:half], cache)] + [model.forward(ids[: i + 1], cache) for i in range(half, len(ids))]
    return (whole - expected).abs().max().item(), (torch.cat(steps) - expected[half - 1 :]).abs().max().item()


def clock():
    """As deepinfer bench does: with one thread its processor time, which other programs disturb less."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def eager_decode(model, ids, context, steps):
    cache = model.new_cache()
    model.forward(ids[:context], cache)
    start = clock()
    for i in range(context, context + steps):
        model.forward(ids[: i + 1], cache)
    return steps / (clock() - start)


def eager_prefill(model, ids, n):
    start = clock()
    model.forward(ids[:n], model.new_cache())
    return n / (clock() - start)


def ours(args, name, threads):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "bench.json")
        subprocess.run([args.binary, "bench", "--suite", "model", "--model", args.model, "--filter", name, "--rounds", "3", "--threads",
                        str(threads), "--json", path], check=True, stdout=subprocess.DEVNULL)
        with open(path) as f:
            return json.load(f)[0]["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description="The nano model here and in eager PyTorch.")
    parser.add_argument("--binary", default=os.path.join(ROOT, "build/deepinfer"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models/nano"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", default="1,2", help="thread counts to try; the fastest counts on each side")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.manual_seed(1)
    ids = torch.randint(0, 5000, (600,))
    whole, stepwise = check(args, ids[:330])
    print(f"largest difference of a logit from deepinfer --numerics f32-noquant: {whole:.1e} at once, {stepwise:.1e} token by token")
    if max(whole, stepwise) > 5e-3:
        sys.exit("this is not the same network")
    model = Model(args.model, token_map(args.model), getattr(torch, args.dtype))
    tests = [("decode 1 behind 100", lambda: eager_decode(model, ids, 100, 16)), ("prefill 512", lambda: eager_prefill(model, ids, 512))]
    print(f"torch {torch.__version__}, {args.dtype}; tokens/s, median of {args.rounds} rounds in turns, the fastest of {args.threads} threads\n")
    print(f"| {'test':<20} | {'eager PyTorch':>13} | {'deepinfer':>9} | {'ratio':>6} |\n|---|---|---|---|")
    results, counts = [], [int(n) for n in args.threads.split(",")]
    for name, eager in tests:
        theirs, mine = {n: [] for n in counts}, {n: [] for n in counts}
        for _ in range(args.rounds):
            for threads in counts:
                torch.set_num_threads(threads)
                theirs[threads].append(eager())
                mine[threads].append(ours(args, name, threads))
        best = lambda v: max(statistics.median(v[n]) for n in v)
        print(f"| {name:<20} | {best(theirs):13.1f} | {best(mine):9.1f} | {best(mine) / best(theirs):6.1f} |", flush=True)
        results.append({"name": name, "eager": theirs, "deepinfer": mine, "ratio": best(mine) / best(theirs)})
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
