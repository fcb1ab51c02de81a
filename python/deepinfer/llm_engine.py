"""The engine step by step, in DeepInfer's shape: add requests, step, read one record per emitted token."""
from __future__ import annotations

import dataclasses
import os
from typing import Any, Iterable, Optional, Sequence, Union

from . import _check
from ._engine import Engine, RecordCollector
from .args import EngineArgs, engine_options
from .errors import InvalidError, UnsupportedError
from .llm import as_params
from .outputs import Histogram, TokenRecord
from .params import SamplingParams
from .tokenizer import Tokenizer


class LLMEngine:
    """One thread at a time may use it. step launches step N and returns the records of step N-1, which computed meanwhile.

    model, seed, engine_args: as for LLM."""

    def __init__(self, model: "str | os.PathLike[str]", *, seed: int = 0, **engine_args: Any) -> None:
        self.engine: Engine = Engine(model, seed, **engine_options(model, engine_args))
        self._requests: dict[Any, RecordCollector] = {}

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> "LLMEngine":
        """An engine with these arguments.

        args: EngineArgs."""
        given = {f.name: getattr(args, f.name) for f in dataclasses.fields(args)}
        return cls(given.pop("model"), seed=given.pop("seed"), **given)

    def add_request(self, user_id: Any, request_id: Any, sampling_params: SamplingParams, prompt_token_ids: Sequence[int],
                    multi_modal_data: Any = None, arrival_time: Optional[float] = None, extra: Any = None, enqueue: bool = True,
                    chunk_checkpoints: Any = None) -> Any:
        """Queue a request; returns its request_id. An invalid one is an exception, never a silent loss.

        request_id: any hashable name; its records have it.
        sampling_params: SamplingParams with n=1.
        prompt_token_ids: the prompt's token ids.
        chunk_checkpoints: positions of the prompt, counted in tokens, whose state is kept for later prompts.
        user_id, arrival_time, extra: not looked at. multi_modal_data, enqueue=False: not supported by this version."""
        if multi_modal_data:
            raise UnsupportedError("unsupported", "images are not supported by this version", "multi_modal_data")
        if not enqueue:
            raise UnsupportedError("unsupported", "a request that somebody else schedules is not supported", "enqueue")
        self._new_name(request_id, "request_id")
        ids = _check.ids(prompt_token_ids, "prompt_token_ids")
        save_at = sorted(set(_check.ids(chunk_checkpoints, "chunk_checkpoints"))) if chunk_checkpoints is not None else []
        sink = RecordCollector(self.engine, request_id, ids, as_params(sampling_params).one_answer(), len(ids))
        self.engine.submit([sink], sink.params, prompt=ids, always_logprobs=True, save_at=save_at)
        self._requests[request_id] = sink
        return request_id

    def fork_request(self, request_id: Any, branch_id: Any, sampling_params: Optional[SamplingParams] = None, at: int = 0) -> Any:
        """A branch of a request at work, under the name branch_id: it begins with the tokens so far (or the first `at`), which are not computed again,
        and goes on by itself. Returns branch_id.

        request_id: of the parent, which goes on, too.
        branch_id: any hashable name.
        sampling_params: of the branch; None: as its parent, a seed of its own makes it differ.
        at: tokens of the parent, prompt and answer, that the branch begins with; 0: all so far."""
        self._new_name(branch_id, "branch_id")
        parent = self._requests.get(request_id)
        if parent is None:
            raise InvalidError("invalid", f"no request {request_id!r} is at work", "request_id")
        if sampling_params is not None:
            as_params(sampling_params).one_answer()
        begun = at or parent.prompt_len + len(parent.completion.token_ids)
        sink = RecordCollector(self.engine, branch_id, parent.prompt, sampling_params or parent.params, begun)
        sink.id = self.engine.fork(sink, parent.id, sampling_params, at=at, always_logprobs=True)
        self._requests[branch_id] = sink
        return branch_id

    def abort_request(self, request_ids: "Union[Any, Iterable[Any]]") -> "tuple[int, int]":
        """End requests at once: no further record of them comes. Returns how many were at work, and the tokens they had emitted.

        request_ids: one name or a list, tuple or set of them; unknown ones are ignored."""
        many = isinstance(request_ids, (list, tuple, set, frozenset))
        count = tokens = 0
        for name in request_ids if many else [request_ids]:
            sink = self._requests.pop(name, None)
            if sink is not None:
                self.engine.cancel(sink.id)
                count += 1
                tokens += len(sink.completion.token_ids)
        return count, tokens

    def _new_name(self, name: Any, argument: str) -> None:
        try:
            known = name in self._requests
        except TypeError:
            raise _check.fail(argument, "hashable", name) from None
        if known:
            raise InvalidError("invalid", f"a request {name!r} is at work already", argument)

    def step(self) -> list[TokenRecord]:
        """Launch a step; the records of the one before, one for each token."""
        self.engine.live
        with self.engine.drive:
            self.engine.step()
        return self._records()

    def flush_inflight_reqs(self) -> list[TokenRecord]:
        """Wait for the step under way; its records. Slots of ended requests are free afterwards."""
        self.engine.live
        with self.engine.drive:
            self.engine.flush()
        return self._records()

    def _records(self) -> list[TokenRecord]:
        records: list[TokenRecord] = []
        for name, sink in list(self._requests.items()):
            records += sink.records
            sink.records = []
            if sink.finished:
                del self._requests[name]
        return records

    def has_unfinished_requests(self) -> bool:
        """Is there a request whose last record was not returned?"""
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        """How many those are."""
        return len(self._requests)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self.engine)

    def stats(self) -> dict[str, int]:
        """Counters since the model was opened; docs/statistics.md says what each means."""
        return self.engine.stats()

    def histograms(self) -> dict[str, Histogram]:
        """Latencies, sizes and step times by name."""
        return self.engine.histograms()

    def close(self) -> None:
        """Give the memory back; requests at work end."""
        self.engine.close()

    def __enter__(self) -> "LLMEngine":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
