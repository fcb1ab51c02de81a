"""Arguments of an engine: ours, and those of other engines, which are mapped, ignored with a warning, or refused by name."""
from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Callable, Optional

from . import _check
from .errors import InvalidError, UnsupportedError

OURS = {"threads", "isa", "numerics", "max_batch", "prefill_chunk", "cache_blocks", "context", "state_slots", "replay", "replay_rows",
        "prefill_order", "draft", "draft_tokens"}
MAPPED = {"max_model_len": "context", "max_num_seqs": "max_batch", "max_num_batched_tokens": "prefill_chunk"}


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


def _boolean(v: Any) -> bool:
    return isinstance(v, bool)


def _any_text(v: Any) -> bool:
    return isinstance(v, str)


# What means nothing here: what it takes, and a test of it.
IGNORED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "gpu_memory_utilization": ("a number above 0, at most 1", lambda v: isinstance(v, (int, float)) and 0 < v <= 1),
    "tensor_parallel_size": ("a whole number of at least 1", _whole(1)),
    "pipeline_parallel_size": ("a whole number of at least 1", _whole(1)),
    "expert_parallel_size": ("a whole number of at least 1", _whole(1)),
    "data_parallel_size": ("a whole number of at least 0", _whole(0)),
    "context_parallel_size": ("a whole number of at least 1", _whole(1)),
    "engram_parallel_size": ("a whole number of at least 0", _whole(0)),
    "engine_rank": ("a whole number of at least 0", _whole(0)),
    "engine_group_rank": ("a whole number of at least 0", _whole(0)),
    "tokens_per_block": ("-1, 64 or 128", lambda v: v in (-1, 64, 128)),
    "lookahead_tokens": ("a whole number of at least 0", _whole(0)),
    "chunked_prefill": ("True or False", _boolean),
    "enable_chunked_prefill": ("True or False", _boolean),
    "enforce_eager": ("True or False", _boolean),
    "trust_remote_code": ("True or False", _boolean),
    "disable_log_stats": ("True or False", _boolean),
    "stop_preempted_request": ("True or False", _boolean),
    "ignore_len": ("True or False", _boolean),
    "swap_space": ("a number of at least 0", lambda v: isinstance(v, (int, float)) and v >= 0),
    "revision": ("a text", _any_text),
    "tokenizer_revision": ("a text", _any_text),
    "dtype": ("\"auto\" or \"bfloat16\"", lambda v: v in ("auto", "bfloat16")),
    "kv_cache_dtype": ("\"auto\"", lambda v: v == "auto"),
    "quantization": ("None", lambda v: v is None),
}
# Silent at these values: they are what we do.
NATURAL: dict[str, tuple[Any, ...]] = {"trust_remote_code": (False,), "disable_log_stats": (True,), "chunked_prefill": (True, False), "enable_chunked_prefill": (True,),
           "tokens_per_block": (-1,), "lookahead_tokens": (0,), "stop_preempted_request": (False,), "dtype": ("auto", "bfloat16"),
           "kv_cache_dtype": ("auto",), "engine_rank": (0,), "engine_group_rank": (0,)}
ONLY: dict[str, tuple[str, list[str]]] = {"load_format": ("auto", ["dummy"]), "engine_type": ("NORMAL", ["PROMPT", "COMPLETION"])}
_warned: set[str] = set()


def engine_options(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Options of Engine from keyword arguments. Unknown names are a TypeError."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None and name in (*OURS, *MAPPED, *IGNORED, *ONLY, "tokenizer", "enable_prefix_caching"):
            continue
        if name in OURS or name in MAPPED:
            options[MAPPED.get(name, name)] = value
        elif name == "enable_prefix_caching":
            options["no_reuse"] = int(not _check.truth(value, name))
        elif name == "tokenizer":
            if str(value) != str(model):
                raise UnsupportedError("unsupported", "the tokenizer is the model's own; another one is not supported", name)
        elif name in ONLY:
            usual, known = ONLY[name]
            if value in known:
                raise UnsupportedError("unsupported", f"{value} is not supported; only {usual} is", name)
            if value != usual:
                raise InvalidError("invalid", f"{value!r} is none of {', '.join([usual, *known])}", name)
        elif name in IGNORED:
            takes, good = IGNORED[name]
            if not good(value):
                raise InvalidError("invalid", f"must be {takes}, not {value!r}", name)
            if value not in NATURAL.get(name, ()) and name not in _warned:
                _warned.add(name)
                warnings.warn(f"deepinfer: {name} means nothing to this engine and is ignored", stacklevel=4)
        else:
            raise TypeError(f"unknown engine argument {name!r}")
    return options


@dataclasses.dataclass
class EngineArgs:
    """For LLMEngine.from_engine_args: DeepInfer's names with its defaults, where a default means something here. The fields are the arguments of
    LLM and LLMEngine under their usual names; help(LLM) says what each does, docs/deepinfer.md what is ignored."""

    model: str
    tokenizer: Optional[str] = None
    seed: int = 0
    max_model_len: Optional[int] = None
    max_num_seqs: Optional[int] = None
    max_num_batched_tokens: Optional[int] = None
    chunked_prefill: bool = False
    expert_parallel_size: Optional[int] = None
    data_parallel_size: Optional[int] = None
    context_parallel_size: Optional[int] = None
    engram_parallel_size: Optional[int] = None
    engine_rank: Optional[int] = None
    engine_group_rank: Optional[int] = None
    engine_type: Optional[str] = None
    stop_preempted_request: Optional[bool] = None
    load_format: Optional[str] = None
    tokens_per_block: Optional[int] = None
    lookahead_tokens: Optional[int] = None
    ignore_len: Optional[bool] = None
    gpu_memory_utilization: Optional[float] = None
    trust_remote_code: Optional[bool] = None
    revision: Optional[str] = None
    tokenizer_revision: Optional[str] = None
    disable_log_stats: Optional[bool] = None
    threads: Optional[int] = None
    isa: Optional[str] = None
    numerics: Optional[str] = None
    replay: Optional[str] = None
    replay_rows: Optional[int] = None
    prefill_order: Optional[str] = None
    draft: Optional[str] = None
    draft_tokens: Optional[int] = None
    cache_blocks: Optional[int] = None
