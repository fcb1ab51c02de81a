"""libdeepinfer.so through ctypes: the structs and functions of deepinfer.h, in its order."""
from __future__ import annotations

import ctypes
import pathlib
from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32,
                    c_uint64, c_void_p)
from typing import Optional

VERSION = "0.1.0"
SONAME = "libdeepinfer.so.0"

Progress = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)


class Error(Structure):
    _fields_ = [("code", c_int), ("message", c_char * 480), ("where", c_char * 160)]


class EngineConfig(Structure):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("isa", c_char_p), ("numerics", c_char_p), ("threads", c_int32),
                ("max_batch", c_int32), ("prefill_chunk", c_int32), ("cache_blocks", c_int32), ("no_reuse", c_int32), ("state_slots", c_int32), ("context", c_int64), ("seed", c_int64),
                ("progress", Progress), ("progress_context", c_void_p), ("max_unread", c_int32),
                ("turn_memory", c_int64), ("turn_memory_bytes", c_int64), ("replay", c_char_p), ("replay_rows", c_int32),
                ("prefill_order", c_char_p), ("draft", c_char_p), ("draft_tokens", c_int32)]


class MemoryPlan(Structure):
    _fields_ = [(name, c_uint64) for name in ("weights_packed", "weights_mapped", "cache", "activations", "scratch", "total")]
    _fields_.append(("context", c_int64))


class ModelInfo(Structure):
    _fields_ = [("name", c_char_p), ("context", c_int64), ("vocab_size", c_int32), ("bos_id", c_int32), ("eos_id", c_int32),
                ("pad_id", c_int32), ("max_batch", c_int32), ("cache_blocks", c_int32), ("digest", c_char_p)]


class Bias(Structure):
    _fields_ = [("id", c_int32), ("value", c_float)]


class SamplingOptions(Structure):
    _fields_ = [("size", c_size_t), ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("top_k", c_int64),
                ("repetition_penalty", c_double), ("presence_penalty", c_double), ("frequency_penalty", c_double), ("seed", c_int64),
                ("max_tokens", c_int64), ("min_tokens", c_int64), ("ignore_eos", c_int32), ("logprobs", c_int32), ("top_logprobs", c_int32),
                ("include_stop", c_int32), ("show_control", c_int32), ("stop", POINTER(c_char_p)), ("n_stop", c_size_t),
                ("stop_ids", POINTER(c_int32)), ("n_stop_ids", c_size_t), ("bias", POINTER(Bias)), ("n_bias", c_size_t)]


TOKEN, TEXT, REASONING, CALL, ARGUMENTS, RECOVERED, FINISHED = range(1, 8)


class Alternative(Structure):
    _fields_ = [("id", c_int32), ("logprob", c_float)]


class Output(Structure):
    _fields_ = [("request", c_int64), ("user", c_void_p), ("kind", c_int), ("token", c_int32), ("index", c_int64), ("logprob", c_float),
                ("n_alternatives", c_uint32), ("alternatives", POINTER(Alternative)), ("text", c_void_p), ("text_bytes", c_size_t),
                ("reason", c_int), ("stop_index", c_int32), ("prompt_tokens", c_int64), ("completion_tokens", c_int64),
                ("reasoning_tokens", c_int64), ("cached_tokens", c_int64), ("error", POINTER(Error)), ("start", c_int), ("thinking", c_int32),
                ("phase", c_int), ("call_id", c_char_p), ("call_space", c_char_p), ("call_custom", c_int32), ("queue_ms", c_double),
                ("first_token_ms", c_double), ("total_ms", c_double), ("miss", c_int), ("miss_position", c_int64),
                ("unconstrained", c_int32), ("skipped_rows", c_int64), ("approximate", c_int32)]


class RequestDefaults(Structure):
    _fields_ = [("size", c_size_t), ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("top_k", c_int64), ("seed", c_int64),
                ("max_tokens", c_int64), ("thinking", c_int32)]


class FormOptions(Structure):
    _fields_ = [("size", c_size_t), ("kind", c_char_p), ("text", c_char_p), ("text_bytes", c_size_t), ("compact", c_int32), ("declared", c_int32),
                ("may_be_cut", c_int32), ("trigger_ids", POINTER(c_int32)), ("n_trigger_ids", c_size_t), ("bound_id", c_int32)]


class Submission(Structure):
    _fields_ = [("size", c_size_t), ("text", c_char_p), ("text_bytes", c_size_t), ("ids", POINTER(c_int32)), ("n_ids", c_size_t),
                ("json", c_char_p), ("json_bytes", c_size_t), ("protocol", c_char_p), ("sampling", POINTER(SamplingOptions)),
                ("forced", POINTER(c_int32)), ("n_forced", c_size_t), ("priority", c_int32), ("tenant", c_uint64), ("deadline_ms", c_int64),
                ("on_output", c_void_p), ("user", c_void_p), ("report_start", c_int32), ("sample", c_int32),
                ("n_samples", c_int32), ("after", c_int64), ("save_at", POINTER(c_int32)), ("n_save_at", c_size_t), ("fork_at", c_int64),
                ("defaults", POINTER(RequestDefaults)), ("replay", c_char_p), ("overrides", c_void_p), ("prepared", c_void_p),
                ("strict", c_int32), ("form", POINTER(FormOptions))]


class Stats(Structure):
    _fields_ = [(name, c_uint64) for name in ("steps", "prompt_rows", "decode_rows", "wasted_rows", "submitted", "refused", "finished",
                                              "cancelled", "failed", "preempted", "host_ns", "compute_ns", "gap_ns")]
    _fields_ += [(name, c_int32) for name in ("running", "waiting", "free_blocks", "blocks")] + [("unread", c_int64)]
    _fields_ += [(name, c_uint64) for name in ("lookups", "lookup_tokens", "cached_tokens", "miss_never_seen", "miss_evicted", "miss_diverged",
                                              "miss_bounded", "evicted_blocks", "states_saved", "states_restored", "prompt_tokens", "generated_tokens",
                                              "ended_stop", "ended_length", "ended_tool_calls", "ended_cancelled", "ended_deadline",
                                              "ended_error", "miss_other_tenant")]
    _fields_ += [("held_slots", c_int32), ("bounded_starts", c_uint64), ("skipped_rows", c_uint64), ("turns_replayed", c_uint64), ("turns_changed", c_uint64),
                 ("turn_bytes", c_uint64), ("failing", c_int32)]
    _fields_ += [(name, c_uint64) for name in ("draft_steps", "drafted_tokens", "accepted_tokens")]
    _fields_ += [(name, c_uint64 * 5) for name in ("drafted_at", "accepted_at")]


HISTOGRAM_EDGES_MAX = 47


class Histogram(Structure):
    _fields_ = [("name", c_char_p), ("help", c_char_p), ("count", c_uint64), ("sum", c_double), ("n_edges", c_int32),
                ("edges", c_double * HISTOGRAM_EDGES_MAX), ("buckets", c_uint64 * (HISTOGRAM_EDGES_MAX + 1))]


_FUNCTIONS = {
    "di_version": (c_char_p, []),
    "di_status_name": (c_char_p, [c_int]),
    "di_end_reason_name": (c_char_p, [c_int]),
    "di_miss_reason_name": (c_char_p, [c_int]),
    "di_engine_config_init": (None, [POINTER(EngineConfig), c_size_t]),
    "di_sampling_options_init": (None, [POINTER(SamplingOptions), c_size_t]),
    "di_form_options_init": (None, [POINTER(FormOptions), c_size_t]),
    "di_submission_init": (None, [POINTER(Submission), c_size_t]),
    "di_engine_plan": (c_int, [POINTER(EngineConfig), POINTER(MemoryPlan), c_size_t, POINTER(Error)]),
    "di_engine_open": (c_int, [POINTER(EngineConfig), POINTER(c_void_p), POINTER(Error)]),
    "di_engine_close": (None, [c_void_p]),
    "di_engine_info": (c_int, [c_void_p, POINTER(ModelInfo), c_size_t, POINTER(Error)]),
    "di_engine_encode": (c_int, [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(Error)]),
    "di_engine_decode": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_void_p, c_size_t, POINTER(c_size_t), POINTER(Error)]),
    "di_engine_submit": (c_int, [c_void_p, POINTER(Submission), POINTER(c_int64), POINTER(Error)]),
    "di_engine_prepare": (c_int, [c_void_p, POINTER(Submission), POINTER(c_void_p), POINTER(Error)]),
    "di_prepared_free": (None, [c_void_p]),
    "di_engine_fork": (c_int, [c_void_p, c_int64, POINTER(Submission), POINTER(c_int64), POINTER(Error)]),
    "di_engine_cancel": (c_int, [c_void_p, c_int64]),
    "di_engine_step": (c_int, [c_void_p, POINTER(c_int), POINTER(Error)]),
    "di_engine_flush": (c_int, [c_void_p, POINTER(Error)]),
    "di_engine_start": (c_int, [c_void_p, POINTER(Error)]),
    "di_engine_stop": (None, [c_void_p]),
    "di_engine_poll": (POINTER(Output), [c_void_p, c_int64]),
    "di_output_free": (None, [c_void_p, POINTER(Output)]),
    "di_engine_get_stats": (c_int, [c_void_p, POINTER(Stats), c_size_t, POINTER(Error)]),
    "di_engine_get_histogram": (c_int, [c_void_p, c_int, POINTER(Histogram), c_size_t, POINTER(Error)]),
    "di_histogram_quantile": (c_double, [POINTER(Histogram), c_double]),
}

_loaded: Optional[CDLL] = None


def use_library(path: "str | pathlib.Path | None" = None) -> CDLL:
    """Load the library from `path`. Without it: the one inside the package, then the one of a source tree's build/. The first one stays."""
    global _loaded
    if _loaded is not None:
        return _loaded
    here = pathlib.Path(__file__).resolve().parent
    places = [pathlib.Path(path)] if path else [here / SONAME, here.parent.parent / "build" / "libdeepinfer.so"]
    found = next((p for p in places if p.exists()), None)
    if found is None:
        raise ImportError(f"{places[-1]} does not exist: `make wheel` builds it, or install the wheel")
    library = ctypes.CDLL(str(found))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    version = library.di_version().decode()
    if version.split(".")[:2] != VERSION.split(".")[:2]:
        raise ImportError(f"{found} has version {version}, the package {VERSION}")
    _loaded = library
    return library
