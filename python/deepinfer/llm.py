"""Offline inference: many prompts in, all answers out."""
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal, Mapping, Optional, Sequence, TypeVar, Union, cast, overload

from . import _check
from ._engine import Collector, Engine, Prompt, RecordCollector
from .args import engine_options
from .errors import InvalidError, UnsupportedError
from .outputs import Histogram, RequestOutput, TokenRecord
from .params import SamplingParams
from .tokenizer import Tokenizer

Self = TypeVar("Self", bound="LLM")
Params = Union[None, SamplingParams, Sequence[SamplingParams]]
Messages = Sequence[Mapping[str, Any]]
OnePrompt = Union[str, Sequence[int], Mapping[str, Any]]
Prompts = Union[OnePrompt, Sequence[OnePrompt]]
ONE_PROMPT = "a text, a list of token ids, or a mapping with prompt or prompt_token_ids"


def as_prompt(prompt: Any, name: str = "prompt") -> Prompt:
    """Text, ids, or a mapping with prompt or prompt_token_ids."""
    if isinstance(prompt, Mapping):
        if prompt.get("multi_modal_data"):
            raise UnsupportedError("unsupported", "images are not supported by this version", "multi_modal_data")
        found = [prompt[key] for key in ("prompt_token_ids", "prompt") if prompt.get(key) is not None]
        if not found:
            raise _check.fail(name, ONE_PROMPT, prompt)
        prompt = found[0]
    if isinstance(prompt, str):
        return prompt
    return _check.ids(_check.listed(prompt, name, ONE_PROMPT), name)


def as_prompts(given: Any, name: str) -> list[Prompt]:
    """One prompt or a list of them."""
    if isinstance(given, (str, Mapping)):
        return [as_prompt(given, name)]
    many = _check.listed(given, name, f"{ONE_PROMPT}, or a list of those")
    if many and _check.is_whole(many[0]):
        return [as_prompt(many, name)]
    return [as_prompt(one, f"{name}[{i}]") for i, one in enumerate(many)]


def as_id_lists(given: Any) -> list[Prompt]:
    many = _check.listed(given, "prompt_token_ids", "a list of token ids, or a list of those")
    if many and _check.is_whole(many[0]):
        return [_check.ids(many, "prompt_token_ids")]
    return [_check.ids(one, f"prompt_token_ids[{i}]") for i, one in enumerate(many)]


def as_params(params: Any, name: str = "sampling_params") -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise _check.fail(name, "SamplingParams", params)
    return params


def spread(params: Any, count: int) -> list[SamplingParams]:
    """For each of `count` prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [as_params(params)] * count
    each = _check.listed(params, "sampling_params", "SamplingParams or a list of them")
    if len(each) != count:
        raise InvalidError("invalid", f"{len(each)} sampling parameters for {count} prompts", "sampling_params")
    return [as_params(p, f"sampling_params[{i}]") for i, p in enumerate(each)]


def as_messages(messages: Any, name: str = "messages") -> list[Any]:
    many = _check.listed(messages, name, "a list of messages")
    for i, message in enumerate(many):
        if not isinstance(message, Mapping):
            raise _check.fail(f"{name}[{i}]", "a mapping with role and content", message)
    return [dict(m) for m in many]


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


class _Opening:
    """How an LLM is opened. A class of its own because type checkers look at LLM.__new__ only where __init__ is further away."""

    def __init__(self, model: "str | os.PathLike[str]", tokenizer: Optional[str] = None, trust_remote_code: bool = False, expert_parallel_size: int = 1, *,
                 seed: int = 0, decode_sequence: bool = True, **engine_args: Any) -> None:
        if expert_parallel_size != 1:
            engine_args["expert_parallel_size"] = expert_parallel_size
        options = engine_options(model, {"tokenizer": tokenizer, "trust_remote_code": trust_remote_code, **engine_args})
        self.decode_sequence: bool = _check.truth(decode_sequence, "decode_sequence")
        self.engine: Engine = Engine(model, seed, **options)


class LLM(_Opening):
    """A model in memory. Any number of threads may call generate and chat; their prompts share the steps. `with LLM(...) as llm:` closes it at the end.
    A child of os.fork (multiprocessing's "fork") cannot use one of its parent: it opens its own.

    model: directory in the official checkpoint layout.
    tokenizer: None or the model's directory; it has its own.
    trust_remote_code, expert_parallel_size: mean nothing here.
    seed: 0 to 2^63-1, from which requests without a seed get theirs.
    decode_sequence: True: generate returns one RequestOutput per prompt, which is the answer's text (a str) with attributes; False: a list of one
    TokenRecord per token for each prompt.
    engine_args: any of
        threads: for computing; 0: all processors.
        isa: instruction set: "ref", "avx2", "avx512", "avx512bf16", "amx"; None: the best of this processor.
        numerics: "bf16" or "bf16-woa8"; with isa "ref" also "f32r", "f32", "f32-noquant".
        max_batch (max_num_seqs): requests that run at the same time, 1 to 1024 (16).
        prefill_chunk (max_num_batched_tokens): prompt rows of one step (256).
        context (max_model_len): tokens of one request, prompt and answer; the model's limit, at most 65,536.
        cache_blocks: blocks of 64 tokens in the cache; 0: enough for max_batch requests of the full context.
        state_slots: snapshots of request state kept for reuse; 0: the library decides.
        enable_prefix_caching: False: every prompt is computed in full. The answers are the same bits.
        replay: "exact", or "bounded": long prompts are computed approximately. replay_rows: tokens at their end that are not.
        prefill_order: "shortest": prompts with the fewest tokens left to compute go first; "arrival". The answers are the same bits.
        draft: "static": the model's draft guesses tokens of every answer, which the next step verifies; "off". The answers are the same bits.
        draft_tokens: how many of them for each answer, 1 to 5; 0: as many as the draft makes.
    Arguments that other engines have and that mean nothing here are ignored with a warning; unknown ones are a TypeError."""

    if TYPE_CHECKING:
        @overload
        def __new__(cls, model: "str | os.PathLike[str]", tokenizer: Optional[str] = ..., trust_remote_code: bool = ..., expert_parallel_size: int = ..., *,
                    seed: int = ..., decode_sequence: Literal[True] = ..., **engine_args: Any) -> "LLM": ...

        @overload
        def __new__(cls, model: "str | os.PathLike[str]", tokenizer: Optional[str] = ..., trust_remote_code: bool = ..., expert_parallel_size: int = ..., *,
                    seed: int = ..., decode_sequence: Literal[False], **engine_args: Any) -> "TokenLLM": ...

        def __new__(cls, *args: Any, **kwargs: Any) -> "LLM": ...

    def generate(self, prompts: Optional[Prompts] = None, sampling_params: Params = None, prompt_token_ids: Optional[Sequence[Any]] = None,
                 use_tqdm: bool = True, multi_modal_data: Any = None, *, priority: Optional[Sequence[int]] = None) -> list[RequestOutput]:
        """Answers in the order of the prompts. Nothing runs if one of them is refused: the exception says which and why.

        prompts: a text that the model continues, a list of token ids, a mapping with prompt or prompt_token_ids, or a list of those.
        sampling_params: for all prompts, or a list with one for each; None: SamplingParams().
        prompt_token_ids: a list of token ids or a list of such lists, instead of prompts.
        use_tqdm: show a bar, where somebody looks at it and tqdm is installed.
        multi_modal_data: not supported by this version.
        priority: a number for each prompt; lower ones run earlier.

        Returns a RequestOutput per prompt (a list of TokenRecord per prompt from an LLM with decode_sequence=False)."""
        if multi_modal_data:
            raise UnsupportedError("unsupported", "images are not supported by this version", "multi_modal_data")
        if (prompts is None) == (prompt_token_ids is None):
            raise InvalidError("invalid", "give either prompts or prompt_token_ids", "prompts")
        all_prompts = as_prompts(prompts, "prompts") if prompts is not None else as_id_lists(prompt_token_ids)
        ranks = [0] * len(all_prompts) if priority is None else _check.listed(priority, "priority", "a list with a number for each prompt")
        if len(ranks) != len(all_prompts):
            raise InvalidError("invalid", f"{len(ranks)} priorities for {len(all_prompts)} prompts", "priority")
        jobs: list[tuple[list[Any], dict[str, Any]]] = []
        for i, (prompt, params) in enumerate(zip(all_prompts, spread(sampling_params, len(all_prompts)))):
            how = {"prompt": prompt, "priority": ranks[i], "always_logprobs": not self.decode_sequence}
            if self.decode_sequence:
                jobs.append((self._samples(prompt, params), how))
            else:
                jobs.append(([RecordCollector(self.engine, i, prompt, params.one_answer(), 0)], how))
        self._run(jobs, use_tqdm)
        if not self.decode_sequence:
            records: Any = [sinks[0].records for sinks, _ in jobs]  # the type of a TokenLLM
            return cast("list[RequestOutput]", records)
        results = [_result(sinks) for sinks, _ in jobs]
        for result in results:
            if isinstance(result.prompt, str):
                result.prompt_token_ids = self.get_tokenizer().encode(result.prompt)
        return results

    def chat(self, messages: "Messages | Sequence[Messages]", sampling_params: Params = None, use_tqdm: bool = True,
             **request: Any) -> list[RequestOutput]:
        """Answers to one conversation or a list of them. outputs[0] has text, reasoning and tool_calls.

        messages: a list of mappings with role and content, as for chat completions, or a list of such lists.
        sampling_params, use_tqdm: as for generate.
        request: further fields of a chat request: tools, tool_choice, thinking, reasoning_effort, response_format, ... Those that sampling_params
        has, too, count before it; None is as if they were not there. One that means nothing here is an InvalidError."""
        many = _check.listed(messages, "messages", "a list of messages")
        if not many:
            raise InvalidError("invalid", "must have at least one message", "messages")
        conversations = [as_messages(many)] if isinstance(many[0], Mapping) or not _is_list(many[0]) else [as_messages(m, f"messages[{i}]")
                                                                                                           for i, m in enumerate(many)]
        jobs: list[tuple[list[Any], dict[str, Any]]] = []
        for conversation, params in zip(conversations, spread(sampling_params, len(conversations))):
            jobs.append((self._samples(conversation, params), {"request": {**request, "messages": conversation}}))
        self._run(jobs, use_tqdm)
        return [_result(sinks) for sinks, _ in jobs]

    def _samples(self, prompt: Any, params: SamplingParams) -> list[Collector]:
        return [Collector(self.engine, prompt, params, i) for i in range(params.n)]

    def _run(self, jobs: "list[tuple[list[Any], dict[str, Any]]]", use_tqdm: bool) -> None:
        every = [sink for sinks, _ in jobs for sink in sinks]
        awaited, finished = len(every), 0
        bar = Progress(use_tqdm, awaited)

        def count() -> None:
            nonlocal finished
            finished += 1

        def done() -> bool:  # asked in every step: no look at each of many thousands
            bar.show(finished)
            return finished == awaited

        for sink in every:
            sink.on_finish = count
        try:
            for i, (sinks, how) in enumerate(jobs):
                try:
                    self.engine.submit(sinks, sinks[0].params, **how)
                except (InvalidError, UnsupportedError) as err:
                    if len(jobs) > 1:
                        err.message = f"prompt {i}: {err.message}"
                    raise
            self.engine.drive_until(done)
        finally:  # an exception or Ctrl-C: nobody waits for the rest
            bar.close()
            rest = [sink for sink in every if sink.id and not sink.finished]
            for sink in rest:
                self.engine.cancel(sink.id)
            awaited = finished + len(rest)
            if rest:
                self.engine.drive_until(done)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self.engine)

    def stats(self) -> dict[str, Any]:
        """Counters since the model was opened; docs/statistics.md says what each means."""
        return self.engine.stats()

    def histograms(self) -> dict[str, Histogram]:
        """Latencies, sizes and step times by name."""
        return self.engine.histograms()

    def close(self) -> None:
        """Give the memory back. Not while another thread generates; a second time it does nothing."""
        self.engine.close()

    def __enter__(self: Self) -> Self:
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


def _is_list(x: Any) -> bool:
    return hasattr(x, "__iter__") and not isinstance(x, (str, bytes))


if TYPE_CHECKING:
    class TokenLLM(LLM):
        """For type checkers: what LLM(..., decode_sequence=False) is."""

        def generate(self, prompts: Optional[Prompts] = ..., sampling_params: Params = ...,  # type: ignore[override]
                     prompt_token_ids: Optional[Sequence[Any]] = ..., use_tqdm: bool = ..., multi_modal_data: Any = ..., *,
                     priority: Optional[Sequence[int]] = ...) -> list[list[TokenRecord]]: ...
