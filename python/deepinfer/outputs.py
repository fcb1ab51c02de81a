"""What requests give back."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional


@dataclasses.dataclass
class Logprob:
    """A token's log-probability in the model's own distribution; rank: among the reported alternatives, from 1, None if it is none of them."""

    logprob: float
    rank: Optional[int] = None


@dataclasses.dataclass
class ToolCall:
    """A call of a tool; arguments: JSON text."""

    name: str
    arguments: str


@dataclasses.dataclass
class CompletionOutput:
    """One answer.

    index: which of SamplingParams.n.
    text, token_ids: the answer; the end id is the last token.
    logprobs: an entry for each token: its own and the alternatives'; None unless asked for. cumulative_logprob: their sum over the answer.
    finish_reason: "stop", "length", "tool_calls", "abort", "deadline" or "error".
    stop_reason: the stop text or id that ended it; None: the model's own end.
    reasoning, tool_calls: of chat."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: Optional[list[dict[int, Logprob]]] = None
    cumulative_logprob: Optional[float] = None
    finish_reason: Optional[str] = None
    stop_reason: "int | str | None" = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Usage:
    """Tokens; reasoning_tokens are some of completion_tokens, cached_tokens those of prompt_tokens that were not computed again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


@dataclasses.dataclass
class RequestMetrics:
    """Milliseconds from submission, -1: the request never came so far."""

    queue_ms: float = -1.0  # until it was given a place
    first_token_ms: float = -1.0
    total_ms: float = -1.0
    miss: str = "none"  # why no more of the prompt was cached: none, never_seen, evicted, diverged, bounded
    miss_position: int = -1  # from which token on


@dataclasses.dataclass
class Histogram:
    """A distribution since the engine was opened, in seconds or tokens."""

    help: str
    count: int
    sum: float
    edges: list[float]  # rising
    buckets: list[int]  # values above the edge before and not above this one; the last: above all edges

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The value below which `share` of the values lie, by straight lines within the buckets; the last edge if it lies above."""
        below, low = 0, 0.0
        for edge, n in zip(self.edges, self.buckets):
            if n and below + n >= share * self.count:
                return low + (edge - low) * max(share * self.count - below, 0) / n
            below, low = below + n, edge
        return low if self.count else 0.0


class RequestOutput(str):
    """A finished request: the text of the answer, being a str, with everything else as attributes."""

    request_id: int
    prompt: Any  # as it was given: text, ids or messages
    prompt_token_ids: Optional[list[int]]
    outputs: list[CompletionOutput]  # SamplingParams.n of them; the str is the text of the first
    finished: bool
    usage: Usage
    num_cached_tokens: int
    metrics: RequestMetrics

    def __new__(cls, request_id: int, prompt: Any, completion: CompletionOutput, usage: Usage,
                metrics: Optional[RequestMetrics] = None) -> "RequestOutput":
        self = super().__new__(cls, completion.text)
        ids = isinstance(prompt, list) and all(isinstance(i, int) for i in prompt)
        self.request_id, self.prompt, self.outputs, self.usage = request_id, prompt, [completion], usage
        self.prompt_token_ids = prompt if ids else None
        self.finished, self.num_cached_tokens, self.metrics = True, usage.cached_tokens, metrics or RequestMetrics()
        return self

    def __reduce__(self) -> "tuple[Any, ...]":
        return _restored, (type(self), str(self)), self.__dict__


def _restored(cls: "type[RequestOutput]", text: str) -> RequestOutput:
    """A copy or what came from another process, before its attributes are set."""
    return str.__new__(cls, text)


@dataclasses.dataclass
class Delta:
    """What a streamed request gave since the last one."""

    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finished: bool = False
    finish_reason: Optional[str] = None
    output: Optional[RequestOutput] = None  # the whole, with the last one


@dataclasses.dataclass(slots=True)
class TokenRecord:
    """One emitted token, in the shape of DeepInfer's output records. Fields about drafts have the values of an engine without drafts."""

    request_id: Any
    prompt_len: int
    token_id: int  # -1: the request ended without a further token
    num_output_tokens: int
    token_logprobs: float = math.nan
    top_logprobs: list[float] = dataclasses.field(default_factory=list)
    top_token_ids: list[int] = dataclasses.field(default_factory=list)
    finished: bool = False
    finish_reason: Optional[str] = None
    prompt_logprobs: Optional[list[float]] = None
    nextn_logprobs: float = 1.0
    sum_smaller_probs: float = -1.0
    draft_tok: int = 1
    accept_tok: int = 1
    confidence_score: list[float] = dataclasses.field(default_factory=list)
