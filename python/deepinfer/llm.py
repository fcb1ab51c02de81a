"""Offline inference: many prompts in, all answers out."""
from __future__ import annotations

import sys
from typing import Any, Mapping, Optional, Sequence, Union

from ._engine import Collector, Engine, Prompt, RecordCollector
from .args import engine_options
from .errors import InvalidError, UnsupportedError
from .outputs import Histogram, RequestOutput, TokenRecord
from .params import SamplingParams
from .tokenizer import Tokenizer

Params = Union[None, SamplingParams, Sequence[SamplingParams]]
Messages = Sequence[Mapping[str, Any]]


def as_prompt(prompt: Any) -> Prompt:
    """Text, ids, or a mapping with prompt or prompt_token_ids."""
    if isinstance(prompt, Mapping):
        if prompt.get("multi_modal_data"):
            raise UnsupportedError("unsupported", "images are not supported by this version", "multi_modal_data")
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt.get("prompt")
    return prompt if isinstance(prompt, str) else as_ids(prompt)


def as_ids(ids: Any) -> list[int]:
    try:
        return [int(i) for i in ids]
    except (TypeError, ValueError):
        raise InvalidError("invalid", f"must be text or a list of token ids, not {type(ids).__name__}", "prompt") from None


def spread(params: Params, count: int) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidError("invalid", f"{len(params)} sampling parameters for {count} prompts", "sampling_params")
    return list(params)


class Progress:
    """A bar, where somebody looks at it and tqdm is installed."""

    def __init__(self, wanted: bool, total: int) -> None:
        self.bar: Any = None
        if wanted and sys.stderr.isatty():
            try:
                from tqdm import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
                self.bar = tqdm(total=total, desc="Processed prompts")
            except ImportError:
                pass

    def show(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class LLM:
    """A model in memory. Any number of threads may call generate and chat; their prompts share the steps.

    decode_sequence: generate returns one RequestOutput per prompt, which is the answer's text (a str) with attributes; False: a list of one
    record per token for each prompt. Engine arguments: threads, isa, numerics, max_batch (max_num_seqs), prefill_chunk (max_num_batched_tokens),
    context (max_model_len), cache_blocks, state_slots, enable_prefix_caching, replay ("exact", "bounded"),
    replay_rows, prefill_order ("shortest", "arrival"); those of other engines are ignored with a warning."""

    def __init__(self, model: str, tokenizer: Optional[str] = None, trust_remote_code: bool = False, expert_parallel_size: int = 1, *, seed: int = 0,
                 decode_sequence: bool = True, **engine_args: Any) -> None:
        if expert_parallel_size != 1:
            engine_args["expert_parallel_size"] = expert_parallel_size
        options = engine_options(model, {"tokenizer": tokenizer, "trust_remote_code": trust_remote_code, **engine_args})
        self.decode_sequence = decode_sequence
        self.engine = Engine(model, seed, **options)

    def generate(self, prompts: Any = None, sampling_params: Params = None, prompt_token_ids: Optional[Sequence[Any]] = None, use_tqdm: bool = True,
                 multi_modal_data: Any = None, *, priority: Optional[Sequence[int]] = None) -> "list[RequestOutput] | list[list[TokenRecord]]":
        """Answers in the order of the prompts. Nothing runs if one of them is refused: the exception says which and why."""
        if multi_modal_data:
            raise UnsupportedError("unsupported", "images are not supported by this version", "multi_modal_data")
        if (prompts is None) == (prompt_token_ids is None):
            raise InvalidError("invalid", "give either prompts or prompt_token_ids", "prompts")
        given: Any = prompts if prompts is not None else prompt_token_ids
        if isinstance(given, (str, Mapping)) or (len(given) and _is_id(given[0])):
            given = [given]
        all_prompts = [as_prompt(p) for p in given]
        jobs = []
        for i, (prompt, params) in enumerate(zip(all_prompts, spread(sampling_params, len(all_prompts)))):
            how = {"prompt": prompt, "priority": priority[i] if priority else 0, "always_logprobs": not self.decode_sequence}
            if self.decode_sequence:
                jobs.append((self._samples(prompt, params), how))
            else:
                jobs.append(([RecordCollector(self.engine, i, prompt, params.one_answer(), 0)], how))
        self._run(jobs, use_tqdm)
        if not self.decode_sequence:
            return [sinks[0].records for sinks, _ in jobs]
        results = [_result(sinks) for sinks, _ in jobs]
        for result in results:
            if isinstance(result.prompt, str):
                result.prompt_token_ids = self.get_tokenizer().encode(result.prompt)
        return results

    def chat(self, messages: "Messages | Sequence[Messages]", sampling_params: Params = None, use_tqdm: bool = True,
             **request: Any) -> list[RequestOutput]:
        """One conversation or a list of them. `request`: further fields of a chat request (tools, tool_choice, thinking, reasoning_effort,
        response_format, ...). outputs[0] has text, reasoning and tool_calls."""
        conversations: Any = [messages] if len(messages) and isinstance(messages[0], Mapping) else messages
        jobs = []
        for conversation, params in zip(conversations, spread(sampling_params, len(conversations))):
            jobs.append((self._samples(conversation, params), {"request": {**request, "messages": list(conversation)}}))
        self._run(jobs, use_tqdm)
        return [_result(sinks) for sinks, _ in jobs]

    def _samples(self, prompt: Any, params: SamplingParams) -> list[Collector]:
        return [Collector(self.engine, prompt, params, i) for i in range(params.n)]

    def _run(self, jobs: "list[tuple[list[Any], dict[str, Any]]]", use_tqdm: bool) -> None:
        left = [sink for sinks, _ in jobs for sink in sinks]
        total = len(left)
        bar = Progress(use_tqdm, total)

        def done() -> bool:
            left[:] = [sink for sink in left if not sink.finished]
            bar.show(total - len(left))
            return not left

        try:
            for i, (sinks, how) in enumerate(jobs):
                try:
                    for sink in sinks:
                        sink.id = self.engine.submit(sink, sink.params, first=sinks[0] if sink is not sinks[0] else None, **how)
                except (InvalidError, UnsupportedError) as err:
                    if len(jobs) > 1:
                        err.message = f"prompt {i}: {err.message}"
                    raise
            self.engine.drive_until(done)
        finally:  # an exception or Ctrl-C: nobody waits for the rest
            bar.close()
            rest = [sink for sink in left if sink.id and not sink.finished]
            for sink in rest:
                self.engine.cancel(sink.id)
            left[:] = rest
            if rest:
                self.engine.drive_until(done)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self.engine)

    def stats(self) -> dict[str, int]:
        return self.engine.stats()

    def histograms(self) -> dict[str, Histogram]:
        """Latencies, sizes and step times by name."""
        return self.engine.histograms()

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _result(sinks: "list[Collector]") -> RequestOutput:
    """The answers to one prompt in one; usage counts the prompt once."""
    result, *more = [sink.result() for sink in sinks]
    for other in more:
        result.outputs += other.outputs
        result.usage.completion_tokens += other.usage.completion_tokens
        result.usage.reasoning_tokens += other.usage.reasoning_tokens
    return result


def _is_id(x: Any) -> bool:
    return not isinstance(x, (str, Mapping)) and not hasattr(x, "__len__")
