"""One di_engine: submitting, driving, and handing each record to the sink of its request."""
from __future__ import annotations

import ctypes
import itertools
import os
import threading
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_void_p, sizeof
from typing import Any, Callable, NoReturn, Optional, Protocol, Sequence, Union

from . import _check
from . import _library as lib
from .errors import UnsupportedError, DeepInferError, InvalidError, make_error
from .outputs import CompletionOutput, Delta, Histogram, Logprob, RequestMetrics, RequestOutput, ToolCall, TokenRecord, Usage
from .params import SEED_MASK, SamplingParams

Prompt = Union[str, Sequence[int]]
FIELDS = {name: kind for name, kind, *_ in lib.EngineConfig._fields_}


class Process:
    """Counts forks: the threads of an engine stay in the process that opened it."""

    forks = 0

    @classmethod
    def forked(cls) -> None:
        cls.forks += 1


os.register_at_fork(after_in_child=Process.forked)


class Sink(Protocol):
    def take(self, out: lib.Output) -> None: ...


def ids_array(ids: Sequence[int]) -> "ctypes.Array[c_int32]":
    return (c_int32 * max(len(ids), 1))(*ids)


def split_seed(seed: int, number: int) -> int:
    """Seed of the engine's request `number`: splitmix64."""
    x = (seed + number * 0x9E3779B97F4A7C15) & (1 << 64) - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ x >> shift) * factor) & (1 << 64) - 1
    return (x ^ x >> 31) & SEED_MASK


class Engine:
    """Submit, cancel, encode, decode and stats: any thread. Stepping: whoever holds `drive`; drive_until takes it for each step, so that any number of
    threads may wait for their requests at once. With start() a thread of the library drives and one of ours hands records out. In a child after
    fork every call is refused and closing does nothing: neither the threads nor the locks that they held are there."""

    def __init__(self, model: "str | os.PathLike[str]", seed: int = 0, **options: Any) -> None:
        self.lib: ctypes.CDLL = lib.use_library()
        self.handle: Optional[c_void_p] = None
        self.forks: int = Process.forks
        config = lib.EngineConfig()
        self.lib.di_engine_config_init(byref(config), sizeof(config))
        config.model = _check.path(model, "model")
        for name, value in options.items():
            if value is not None:
                self._set(config, name, value)
        seed = _check.whole(seed, "seed", 0, SEED_MASK)
        handle, err = c_void_p(), lib.Error()
        self._check(self.lib.di_engine_open(byref(config), byref(handle), byref(err)), err)
        self.handle = handle
        self.seed: int = seed
        self.drive: threading.Lock = threading.Lock()
        self.sinks: dict[int, Sink] = {}
        self.numbers: itertools.count[int] = itertools.count(1)
        self.reader: Optional[threading.Thread] = None
        info = lib.ModelInfo()
        self._check(self.lib.di_engine_info(handle, byref(info), sizeof(info), byref(err)), err)
        self.info: lib.ModelInfo = info

    @staticmethod
    def _set(config: lib.EngineConfig, name: str, value: Any) -> None:
        if FIELDS[name] is ctypes.c_char_p:
            setattr(config, name, _check.text(value, name, zero_bytes=False))
        else:
            setattr(config, name, _check.whole(value, name, *(_check.INT64 if FIELDS[name] is c_int64 else _check.INT32)))

    def _check(self, status: int, err: lib.Error) -> None:
        if status:
            raise self.error(err, status)

    def error(self, err: lib.Error, status: Optional[int] = None) -> DeepInferError:
        name = self.lib.di_status_name(err.code if status is None else status).decode()
        return make_error(name, err.message.decode("utf-8", "replace"), err.where.decode("utf-8", "replace"))

    @property
    def live(self) -> c_void_p:
        if self.handle is None:
            raise InvalidError("invalid", "it is closed", "engine")
        if self.forks != Process.forks:
            raise InvalidError("invalid", "it was opened before this process was forked and cannot be used here; open one in the child", "engine")
        return self.handle

    def close(self) -> None:
        """Requests at work end as aborted. Not while another thread uses the engine. In a forked child the memory stays with the parent."""
        if self.handle is not None and self.forks != Process.forks:
            self.handle = self.reader = None
        if self.handle is not None:
            self.stop()
            handle, self.handle = self.handle, None
            self.lib.di_engine_close(handle)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine can neither be pickled nor copied; open one in each process")

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            self.close()

    # ---- text

    def encode(self, text: str, control: bool) -> list[int]:
        data, err, n = _check.text(text, "text"), lib.Error(), c_size_t()
        ids = (c_int32 * (len(data) + 1))()
        self._check(self.lib.di_engine_encode(self.live, data, len(data), control, ids, len(ids), byref(n), byref(err)), err)
        return list(ids[:n.value])

    def decode(self, ids: Sequence[int]) -> str:
        ids = _check.ids(ids, "ids")
        array, err, n = ids_array(ids), lib.Error(), c_size_t()
        size = 16 * len(ids) + 256
        while True:
            text = ctypes.create_string_buffer(size)
            self._check(self.lib.di_engine_decode(self.live, array, len(ids), text, size, byref(n), byref(err)), err)
            if n.value <= size:
                return text.raw[:n.value].decode()
            size = n.value

    # ---- requests

    def _sampling(self, p: SamplingParams, seed: int, always_logprobs: bool) -> "tuple[lib.SamplingOptions, list[Any]]":
        o = lib.SamplingOptions()
        self.lib.di_sampling_options_init(byref(o), sizeof(o))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            setattr(o, name, float(getattr(p, name)))
        o.top_k, o.seed, o.max_tokens = int(p.top_k), seed, 0 if p.max_tokens is None else int(p.max_tokens) or 1
        o.min_tokens, o.top_logprobs = max(int(p.min_tokens), int(p.first_n_token_no_eos)), p.n_alternatives
        o.ignore_eos, o.logprobs = bool(p.ignore_eos), p.wants_logprobs or always_logprobs
        o.include_stop, o.show_control = bool(p.include_stop_str_in_output), not p.skip_special_tokens
        stops = [s.encode() for s in p.stops]
        stop = (ctypes.c_char_p * max(len(stops), 1))(*stops)
        end_ids = _check.ids(p.stop_token_ids or (), "stop_token_ids")
        stop_ids = ids_array(end_ids)
        pairs = [lib.Bias(*pair) for pair in _check.bias(p.logit_bias or {}, "logit_bias")]
        bias = (lib.Bias * max(len(pairs), 1))(*pairs)
        o.stop, o.n_stop = stop, len(stops)
        o.stop_ids, o.n_stop_ids = stop_ids, len(end_ids)
        o.bias, o.n_bias = bias, len(pairs)
        return o, [stop, stop_ids, bias]

    def _form(self, p: SamplingParams) -> "Optional[lib.FormOptions]":
        form = p.form()
        if form is None:
            return None
        o, text = lib.FormOptions(), form.text.encode()
        self.lib.di_form_options_init(byref(o), sizeof(o))
        o.kind, o.text, o.text_bytes = form.kind.encode(), text, len(text)
        o.compact, o.declared, o.may_be_cut = form.compact, form.declared, form.may_be_cut
        o.trigger_ids, o.n_trigger_ids, o.bound_id = ids_array(form.trigger), len(form.trigger), form.bound
        return o

    def _submission(self) -> lib.Submission:
        s = lib.Submission()
        self.lib.di_submission_init(byref(s), sizeof(s))
        return s

    def submit(self, sinks: "Sequence[Collector]", params: SamplingParams, *, prompt: Optional[Prompt] = None,
               request: Optional[dict[str, Any]] = None, tenant: int = 0, priority: int = 0, always_logprobs: bool = False,
               save_at: Sequence[int] = ()) -> None:
        """Queue a prompt (text or ids) or a chat request. Each sink gets an answer, its records and the engine's id of it."""
        params.check()
        numbers = [next(self.numbers) for _ in sinks]
        seed = params.chosen_seed if params.chosen_seed is not None else split_seed(self.seed, numbers[0])
        s = self._submission()
        options, _keep = self._sampling(params, seed, always_logprobs)
        s.sampling = ctypes.pointer(options)
        form = self._form(params)
        if form is not None:
            s.form = ctypes.pointer(form)
        if request is not None:
            s.json = _check.fields(request)
            s.json_bytes, s.strict = len(s.json), 1
        elif isinstance(prompt, str):
            s.text = _check.text(prompt, "prompt")
            s.text_bytes = len(s.text)
        else:
            given = _check.ids(() if prompt is None else prompt, "prompt_token_ids")
            s.ids, s.n_ids = ids_array(given), len(given)
        s.tenant, s.n_samples = tenant, params.n
        if len(sinks) == 1:
            self._submit(sinks, numbers, s, params, priority, save_at)
            return
        prepared, err = c_void_p(), lib.Error()
        self._check(self.lib.di_engine_prepare(self.live, byref(s), byref(prepared), byref(err)), err)
        try:
            s = self._submission()
            s.prepared, s.tenant, s.n_samples = prepared, tenant, params.n
            self._submit(sinks, numbers, s, params, priority, save_at)
        finally:
            self.lib.di_prepared_free(prepared)

    def _submit(self, sinks: "Sequence[Collector]", numbers: "list[int]", s: lib.Submission, params: SamplingParams, priority: int,
                save_at: Sequence[int]) -> None:
        if params.golden_token_ids is not None:
            forced = _check.ids(params.golden_token_ids, "golden_token_ids")
            s.forced, s.n_forced = ids_array(forced), len(forced)
        if save_at:
            s.save_at, s.n_save_at = ids_array(save_at), len(save_at)
        s.priority = _check.whole(priority, "priority", *_check.INT32)
        for sink, number in zip(sinks, numbers):
            s.sample, s.after = sink.completion.index, 0 if sink is sinks[0] else sinks[0].id
            sink.id = self._queue(sink, number, s, self.lib.di_engine_submit)

    def fork(self, sink: "Collector", parent: int, params: Optional[SamplingParams] = None, *, at: int = 0, priority: int = 0,
             always_logprobs: bool = False) -> int:
        """Queue a branch of a live request (di_engine_fork). Without params it is sampled as its parent."""
        number = next(self.numbers)
        s = self._submission()
        s.fork_at, s.priority = _check.whole(at, "at", 0), _check.whole(priority, "priority", *_check.INT32)
        if params is not None:
            params.check()
            if params.form() is not None:
                raise UnsupportedError("unsupported", "a branch has the form of its parent", "structured_outputs")
            seed = params.chosen_seed if params.chosen_seed is not None else split_seed(self.seed, number)
            options, keep = self._sampling(params, seed, always_logprobs)
            s.sampling = ctypes.pointer(options)
        return self._queue(sink, number, s, lambda *given: self.lib.di_engine_fork(given[0], parent, *given[1:]))

    def _queue(self, sink: "Collector", number: int, s: lib.Submission, call: Callable[..., int]) -> int:
        rid, err = c_int64(), lib.Error()
        s.user = number
        self.sinks[number] = sink
        status = call(self.live, byref(s), byref(rid), byref(err))
        if status:
            del self.sinks[number]
            raise self.error(err, status)
        return rid.value

    def cancel(self, request: int) -> bool:
        return self.handle is not None and self.forks == Process.forks and bool(self.lib.di_engine_cancel(self.handle, request))

    # ---- driving

    def step(self) -> bool:
        """One step and its records; holds `drive`. False when nothing is left."""
        busy, err = c_int(), lib.Error()
        status = self.lib.di_engine_step(self.live, byref(busy), byref(err))
        self.hand_out()
        self._check(status, err)
        return bool(busy.value)

    def flush(self) -> None:
        err = lib.Error()
        status = self.lib.di_engine_flush(self.live, byref(err))
        self.hand_out()
        self._check(status, err)

    def drive_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.live  # before a lock that a thread of the parent may have held
            with self.drive:
                if not done():
                    self.step()

    def hand_out(self) -> None:
        while self._hand_one(0):
            pass

    def _hand_one(self, timeout_ms: int) -> bool:
        out = self.lib.di_engine_poll(self.live, timeout_ms)
        if not out:
            return False
        try:
            record = out.contents
            sink = self.sinks.get(record.user) if record.kind != lib.FINISHED else self.sinks.pop(record.user, None)
            if sink is not None:
                sink.take(record)
        finally:
            self.lib.di_output_free(self.live, out)
        return True

    def start(self) -> None:
        err = lib.Error()
        self._check(self.lib.di_engine_start(self.live, byref(err)), err)
        self.reader = threading.Thread(target=self._read, name="deepinfer-reader", daemon=True)
        self.reader.start()

    def _read(self) -> None:
        while self.reader is not None:
            self._hand_one(1000)

    def stop(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            self.lib.di_engine_stop(self.live)
            reader.join()
            self.hand_out()

    def stats(self) -> dict[str, Any]:
        s, err = lib.Stats(), lib.Error()
        self._check(self.lib.di_engine_get_stats(self.live, byref(s), sizeof(s), byref(err)), err)
        values = ((field[0], getattr(s, field[0])) for field in s._fields_)
        return {name: value if isinstance(value, int) else list(value) for name, value in values}

    def histograms(self) -> dict[str, Histogram]:
        found: dict[str, Histogram] = {}
        h, err = lib.Histogram(), lib.Error()
        while not self.lib.di_engine_get_histogram(self.live, len(found), byref(h), sizeof(h), byref(err)):
            found[h.name.decode()] = Histogram(h.help.decode(), h.count, h.sum, h.edges[:h.n_edges], h.buckets[:h.n_edges + 1])
        return found


class Collector:
    """Gathers the records of one request."""

    def __init__(self, engine: Engine, prompt: Any, params: SamplingParams, index: int = 0) -> None:
        self.engine: Engine = engine
        self.prompt: Any = prompt
        self.params: SamplingParams = params
        self.id: int = 0
        self.completion: CompletionOutput = CompletionOutput(index, logprobs=[] if params.wants_logprobs else None)
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.records: list[TokenRecord] = []
        self.usage: Usage = Usage()
        self.metrics: RequestMetrics = RequestMetrics()
        self.error: Optional[DeepInferError] = None
        self.finished: bool = False
        self.on_finish: Optional[Callable[[], None]] = None

    def take(self, out: lib.Output) -> None:
        c = self.completion
        if out.kind == lib.TOKEN:
            c.token_ids.append(out.token)
            self._take_logprobs(out)
        elif out.kind == lib.TEXT:
            self.texts.append(text_of(out))
        elif out.kind == lib.REASONING:
            self.reasonings.append(text_of(out))
        elif out.kind == lib.RECOVERED:
            self.texts, self.reasonings = self.reasonings, []
        elif out.kind == lib.CALL:
            c.tool_calls.append(ToolCall(text_of(out), ""))
        elif out.kind == lib.ARGUMENTS:
            c.tool_calls[out.index].arguments += text_of(out)
        elif out.kind == lib.FINISHED:
            self._finish(out)

    def _take_logprobs(self, out: lib.Output) -> None:
        c = self.completion
        if c.logprobs is None:
            return
        entry = {out.alternatives[i].id: Logprob(out.alternatives[i].logprob, i + 1) for i in range(out.n_alternatives)}
        entry.setdefault(out.token, Logprob(out.logprob))
        c.logprobs.append(entry)
        c.cumulative_logprob = (c.cumulative_logprob or 0.0) + out.logprob

    def _finish(self, out: lib.Output) -> None:
        c = self.completion
        c.text, c.reasoning = "".join(self.texts), "".join(self.reasonings)
        c.finish_reason = self.engine.lib.di_end_reason_name(out.reason).decode()
        if out.stop_index >= 0:
            c.stop_reason = text_of(out)
        elif c.finish_reason == "stop" and out.token in (self.params.stop_token_ids or ()):
            c.stop_reason = out.token
        self.usage = Usage(out.prompt_tokens, out.completion_tokens, out.reasoning_tokens, out.cached_tokens)
        self.metrics = RequestMetrics(out.queue_ms, out.first_token_ms, out.total_ms, self.engine.lib.di_miss_reason_name(out.miss).decode(),
                                      out.miss_position)
        if out.error:
            self.error = self.engine.error(out.error.contents)
        self.finished = True
        if self.on_finish is not None:
            self.on_finish()

    def result(self) -> RequestOutput:
        if self.error is not None:
            raise self.error
        return RequestOutput(self.id, self.prompt, self.completion, self.usage, self.metrics)


class RecordCollector(Collector):
    """Also keeps one record per token, as DeepInfer's users know them."""

    def __init__(self, engine: Engine, name: Any, prompt: Prompt, params: SamplingParams, prompt_len: int) -> None:
        super().__init__(engine, prompt, params)
        self.name, self.prompt_len = name, prompt_len

    def take(self, out: lib.Output) -> None:
        super().take(out)
        if out.kind == lib.TOKEN:
            alternatives = [out.alternatives[i] for i in range(out.n_alternatives)]
            self.records.append(TokenRecord(self.name, self.prompt_len, out.token, len(self.completion.token_ids), out.logprob,
                                            [a.logprob for a in alternatives], [a.id for a in alternatives]))
        elif out.kind == lib.FINISHED:
            if not self.records or self.completion.finish_reason not in ("stop", "length", "tool_calls"):
                self.records.append(TokenRecord(self.name, self.prompt_len, -1, len(self.completion.token_ids)))
            self.records[-1].finished, self.records[-1].finish_reason = True, self.completion.finish_reason
            for record in self.records:
                record.prompt_len = self.usage.prompt_tokens


def text_of(out: lib.Output) -> str:
    return ctypes.string_at(out.text, out.text_bytes).decode() if out.text_bytes else ""


def delta_of(out: lib.Output) -> Delta:
    d = Delta()
    if out.kind == lib.TOKEN:
        d.token_ids.append(out.token)
    elif out.kind == lib.TEXT:
        d.text = text_of(out)
    elif out.kind == lib.REASONING:
        d.reasoning = text_of(out)
    return d
