"""Streaming for asyncio: the library's own thread drives, answers come piece by piece."""
from __future__ import annotations

import asyncio
import os
from typing import Any, AsyncIterator, Mapping, Optional, Sequence

from . import _library as lib
from ._engine import Collector, Engine, delta_of
from .args import engine_options
from .llm import OnePrompt, as_messages, as_params, as_prompt
from .outputs import Delta, Histogram
from .params import SamplingParams
from .tokenizer import Tokenizer


class _Stream(Collector):
    """Records arrive on the reader's thread and leave on the event loop's."""

    def __init__(self, engine: Engine, prompt: Any, params: SamplingParams) -> None:
        super().__init__(engine, prompt, params)
        self.loop = asyncio.get_running_loop()
        self.queue: "asyncio.Queue[Delta]" = asyncio.Queue()

    def take(self, out: lib.Output) -> None:
        super().take(out)
        delta = delta_of(out)
        if self.finished:
            delta.finished, delta.finish_reason = True, self.completion.finish_reason
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, delta)
        except RuntimeError:  # the loop is gone, and so is whoever waited
            self.engine.cancel(out.request)


class AsyncLLM:
    """generate and chat are asynchronous iterators of Delta; leaving one early cancels its request. Any number at once, from any event loops.

    model, seed, engine_args: as for LLM."""

    def __init__(self, model: "str | os.PathLike[str]", *, seed: int = 0, **engine_args: Any) -> None:
        self.engine: Engine = Engine(model, seed, **engine_options(model, engine_args))
        self.engine.start()

    def generate(self, prompt: OnePrompt, sampling_params: Optional[SamplingParams] = None, *, priority: int = 0) -> AsyncIterator[Delta]:
        """The pieces' text, joined, is the answer's text; the last piece has finished=True and the whole as `output`.

        prompt: a text, a list of token ids, or a mapping with prompt or prompt_token_ids.
        sampling_params: SamplingParams with n=1; None: SamplingParams().
        priority: lower ones run earlier."""
        return self._stream(as_params(sampling_params), prompt, {"prompt": as_prompt(prompt), "priority": priority})

    def chat(self, messages: Sequence[Mapping[str, Any]], sampling_params: Optional[SamplingParams] = None, *, priority: int = 0,
             **request: Any) -> AsyncIterator[Delta]:
        """The same for a conversation; pieces have text or reasoning, tool calls are in the last one's output.

        messages: a list of mappings with role and content.
        sampling_params, priority: as for generate.
        request: further fields of a chat request, as for LLM.chat."""
        how = {"request": {**request, "messages": as_messages(messages)}, "priority": priority}
        return self._stream(as_params(sampling_params), messages, how)

    async def _stream(self, params: SamplingParams, prompt: Any, how: "dict[str, Any]") -> AsyncIterator[Delta]:
        stream = _Stream(self.engine, prompt, params)
        self.engine.submit([stream], params.one_answer(), **how)
        try:
            while True:
                delta = await stream.queue.get()
                while not stream.queue.empty() and not delta.finished:
                    more = stream.queue.get_nowait()
                    delta = Delta(delta.text + more.text, delta.reasoning + more.reasoning, delta.token_ids + more.token_ids, more.finished,
                                  more.finish_reason)
                if delta.finished:
                    delta.output = stream.result()
                yield delta
                if delta.finished:
                    return
        finally:
            if not stream.finished:
                self.engine.cancel(stream.id)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self.engine)

    def stats(self) -> "dict[str, int]":
        """Counters since the model was opened; docs/statistics.md says what each means."""
        return self.engine.stats()

    def histograms(self) -> "dict[str, Histogram]":
        """Latencies, sizes and step times by name."""
        return self.engine.histograms()

    def close(self) -> None:
        """Requests at work end: their iterators are not woken. Call it when nobody iterates."""
        self.engine.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self.close()
