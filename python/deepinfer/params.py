"""How a request is sampled."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence, Union

from .errors import InvalidError, UnsupportedError

SEED_MASK = (1 << 63) - 1


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """Names and meaning as people know them; ranges are the engine's, which says in a sentence what it does not take.

    seed and seq_seed are two names of one thing; without them each request gets its own seed, made from LLM(seed=...) and the request's number.
    Temperature 0 is greedy: an argmax with ties to the lowest id. logprobs: True, or a number of alternatives, as top_logprobs."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: Optional[int] = 16  # None: by the model's rules; 0 counts as 1
    min_tokens: int = 0
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    seed: Optional[int] = None
    seq_seed: Optional[int] = None  # 64 bits, of which the engine uses the lower 63
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Optional[Mapping[int, float]] = None
    logprobs: Union[None, bool, int] = None
    top_logprobs: int = 0
    prompt_logprobs: Union[None, bool, int] = None
    ignore_eos: bool = False
    first_n_token_no_eos: int = 0
    golden_token_ids: Optional[Sequence[int]] = None  # forced output by index, -1 = free
    so_args: Optional[Mapping[str, Any]] = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    n: int = 1  # answers to one prompt, which is computed once: LLM alone
    best_of: Optional[int] = None
    bad_words: Optional[Sequence[str]] = None

    def __post_init__(self) -> None:
        for name in ("so_args", "prompt_logprobs", "bad_words"):
            if getattr(self, name):
                raise UnsupportedError("unsupported", f"{name} is not supported by this version", name)
        if not isinstance(self.n, int) or not 1 <= self.n <= 128:
            raise InvalidError("invalid", f"must be a whole number from 1 to 128, not {self.n!r}", "n")
        if self.best_of not in (None, self.n):
            raise UnsupportedError("unsupported", "a choice among more answers than n is not supported by this version", "best_of")
        if self.seed is not None and self.seq_seed is not None and self.seed != self.seq_seed:
            raise InvalidError("invalid", "seed and seq_seed are two names of one thing; give one of them", "seq_seed")
        if self.first_n_token_no_eos < 0:
            raise InvalidError("invalid", "must be at least 0", "first_n_token_no_eos")
        if self.seq_seed is not None and not 0 <= self.seq_seed < 1 << 64:
            raise InvalidError("invalid", "must be a whole number from 0 to 2^64-1", "seq_seed")

    def one_answer(self) -> "SamplingParams":
        """Itself, where only one answer can be given."""
        if self.n != 1:
            raise UnsupportedError("unsupported", "more than one answer is for LLM.generate and LLM.chat", "n")
        return self

    @property
    def chosen_seed(self) -> Optional[int]:
        return self.seq_seed & SEED_MASK if self.seq_seed is not None else self.seed

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs not in (None, False) or self.top_logprobs > 0

    @property
    def n_alternatives(self) -> int:
        asked = self.logprobs if isinstance(self.logprobs, int) and not isinstance(self.logprobs, bool) else 0
        return max(asked, self.top_logprobs)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def request_fields(self, seed: int) -> dict[str, Any]:
        """The fields of a JSON chat request."""
        fields: dict[str, Any] = {
            "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p, "seed": seed,
            "presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty, "min_tokens": max(self.min_tokens, self.first_n_token_no_eos),
            "stop": self.stops, "stop_token_ids": [int(i) for i in self.stop_token_ids or ()], "ignore_eos": bool(self.ignore_eos),
            "logit_bias": {str(int(k)): float(v) for k, v in (self.logit_bias or {}).items()},
            "include_stop_str_in_output": bool(self.include_stop_str_in_output), "skip_special_tokens": bool(self.skip_special_tokens),
        }
        if self.max_tokens is not None:
            fields["max_tokens"] = self.max_tokens or 1
        if self.wants_logprobs:
            fields.update(logprobs=True, top_logprobs=self.n_alternatives)
        return fields
