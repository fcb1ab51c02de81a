"""What requests give back."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: Optional[int] = None  # among the reported alternatives, from 1; None: it is not one of them


@dataclasses.dataclass
class ToolCall:
    name: str
    arguments: str  # JSON text


@dataclasses.dataclass
class CompletionOutput:
    index: int = 0
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)  # the end id included
    logprobs: Optional[list[dict[int, Logprob]]] = None  # one entry per token: the token's own and the alternatives
    cumulative_logprob: Optional[float] = None
    finish_reason: Optional[str] = None  # "stop", "length", "tool_calls", "abort", "deadline", "error"
    stop_reason: "int | str | None" = None  # the stop string or id that ended it; None: the model's own end
    reasoning: str = ""  # chat
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)  # chat


@dataclasses.dataclass
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


class RequestOutput(str):
    """A finished request: the text of the answer, being a str, with everything else as attributes."""

    request_id: int
    prompt: Any  # as it was given: text, ids or messages
    prompt_token_ids: Optional[list[int]]
    outputs: list[CompletionOutput]
    finished: bool
    usage: Usage
    num_cached_tokens: int

    def __new__(cls, request_id: int, prompt: Any, completion: CompletionOutput, usage: Usage) -> "RequestOutput":
        self = super().__new__(cls, completion.text)
        ids = isinstance(prompt, list) and all(isinstance(i, int) for i in prompt)
        self.request_id, self.prompt, self.outputs, self.usage = request_id, prompt, [completion], usage
        self.prompt_token_ids = prompt if ids else None
        self.finished, self.num_cached_tokens = True, usage.cached_tokens
        return self


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
