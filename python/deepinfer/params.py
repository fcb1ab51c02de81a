"""How a request is sampled."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence, Union

from . import _check
from .errors import InvalidError, UnsupportedError

SEED_MASK = (1 << 63) - 1


@dataclasses.dataclass(kw_only=True)
class StructuredOutputsParams:
    """The form of an answer; nothing else can come. Exactly one of json, json_object, regex, choice, grammar and structural_tag.

    json: a JSON Schema, as an object or as JSON text. json_object: True: any JSON object.
    regex: an expression that the whole answer matches. choice: texts, one of which is the answer.
    grammar: EBNF (start rule root) where it has "::=", else Lark (start rule start).
    structural_tag: free text with constrained parts, as an object or as JSON text.
    disable_any_whitespace: no white space between the tokens of JSON.
    property_order: "any", or "declared": as the schema has them.
    end_in_time: the answer is brought to its shortest end when few tokens are left."""

    json: Union[None, str, bool, Mapping[str, Any]] = None
    json_object: bool = False
    regex: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    grammar: Optional[str] = None
    structural_tag: Union[None, str, Mapping[str, Any]] = None
    disable_any_whitespace: bool = False
    property_order: str = "any"
    end_in_time: bool = True

    def __post_init__(self) -> None:
        self.form()

    def form(self) -> "tuple[str, str]":
        """Kind and text of di_form_options."""
        given = [n for n in ("json", "regex", "choice", "grammar", "structural_tag") if getattr(self, n) is not None] + ["json_object"] * bool(self.json_object)
        for name in ("json_object", "disable_any_whitespace", "end_in_time"):
            _check.truth(getattr(self, name), name)
        if len(given) != 1:
            raise InvalidError("invalid", f"exactly one form is needed, not {' and '.join(given) or 'none'}", "structured_outputs")
        if self.property_order not in ("any", "declared"):
            raise InvalidError("invalid", "property_order must be any or declared", "property_order")
        name, value = given[0], getattr(self, given[0])
        if name == "json_object":
            return name, ""
        if name in ("regex", "grammar"):
            _check.text(value, name)
            return ("regex" if name == "regex" else "ebnf" if "::=" in value else "lark"), value
        if name == "choice":
            value = [_check.text(v, f"choice[{i}]").decode() for i, v in enumerate(_check.listed(value, "choice", "a list of texts"))]
        if not isinstance(value, str):
            value = _check.json_text(value, name)
        return {"structural_tag": "structural"}.get(name, name), value



SO_TRIGGERS = ("trigger_token_ids", "bound_token_id")


@dataclasses.dataclass
class Form:
    """di_form_options"""

    kind: str
    text: str
    compact: bool = False
    declared: bool = False
    may_be_cut: bool = False
    trigger: Sequence[int] = ()
    bound: int = -1


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """Names and meaning as people know them; keyword arguments only. A wrong type is an InvalidError at once, a value out of range one when it is used.

    temperature: 0 to 2; 0 is greedy, an argmax with ties to the lowest id.
    top_p: above 0, at most 1: sample from the likeliest tokens that together have this probability.
    top_k: sample from so many of the likeliest tokens; 0 or -1: all.
    min_p: 0 to 1: drop tokens with less than this share of the largest probability.
    max_tokens: of the answer, reasoning included; 0 counts as 1; None: by the model's rules, at most what the context leaves.
    min_tokens: no end id before so many tokens.
    stop: a text or up to 16 of them that end the answer.
    stop_token_ids: ids that end the answer besides the model's end id.
    seed: 0 to 2^63-1; equal seeds give equal answers. Without one each request gets its own, made from LLM(seed=...) and the request's number.
    seq_seed: another name of seed; 64 bits, of which the lower 63 count.
    presence_penalty, frequency_penalty: -2 to 2, for tokens that the answer has already, once or per occurrence.
    repetition_penalty: above 0, divides or multiplies the logits of tokens that prompt or answer have; 1 is off.
    logit_bias: mapping from token ids to -100 .. 100, added to their logits.
    logprobs: True, or a number of alternatives (as top_logprobs): report log-probabilities of the model's own distribution.
    top_logprobs: alternatives reported for each token, 0 to 20.
    structured_outputs: StructuredOutputsParams, the form of the answer.
    so_args: the same as DeepInfer has it: {"schema_type": "json" | "regex" | "ebnf", "schema", "trigger_token_ids"?, "bound_token_id"?}: the form begins
        behind the trigger, once the bound token has come the rest of the trigger follows at once.
    prompt_logprobs, bad_words: not supported by this version; refused unless empty.
    ignore_eos: end and stop ids do not end the answer.
    first_n_token_no_eos: another name of min_tokens; the larger one counts.
    golden_token_ids: the answer's tokens by index, -1 = free: forced output.
    include_stop_str_in_output: a stop text that ended the answer stays in it.
    skip_special_tokens: False: control tokens are spelled out in the text.
    n: answers to one prompt, 1 to 128; the prompt is computed once. LLM alone.
    best_of: None or n."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    seed: Optional[int] = None
    seq_seed: Optional[int] = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Optional[Mapping[int, float]] = None
    logprobs: Union[None, bool, int] = None
    top_logprobs: int = 0
    prompt_logprobs: Union[None, bool, int] = None
    ignore_eos: bool = False
    first_n_token_no_eos: int = 0
    golden_token_ids: Optional[Sequence[int]] = None
    structured_outputs: Optional[StructuredOutputsParams] = None
    so_args: Optional[Mapping[str, Any]] = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    best_of: Optional[int] = None
    bad_words: Optional[Sequence[str]] = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """What the engine would not get to see. Again at each use: fields may be set later."""
        for name in ("prompt_logprobs", "bad_words"):
            if getattr(self, name):
                raise UnsupportedError("unsupported", f"{name} is not supported by this version", name)
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            _check.number(getattr(self, name), name)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _check.truth(getattr(self, name), name)
        for name, least, most in (("n", 1, 128), ("top_k", *_check.INT64), ("min_tokens", 0, SEED_MASK), ("top_logprobs", 0, 20),
                                  ("first_n_token_no_eos", 0, SEED_MASK)):
            _check.whole(getattr(self, name), name, least, most)
        for name, most in (("max_tokens", SEED_MASK), ("seed", SEED_MASK), ("seq_seed", (1 << 64) - 1)):
            _check.optional_whole(getattr(self, name), name, 0, most)
        if self.logprobs is not None and not isinstance(self.logprobs, bool):
            _check.whole(self.logprobs, "logprobs", 0, 20)
        if self.seed is not None and self.seq_seed is not None and self.seed != self.seq_seed:
            raise InvalidError("invalid", "seed and seq_seed are two names of one thing; give one of them", "seq_seed")
        if self.best_of not in (None, self.n):
            raise UnsupportedError("unsupported", "a choice among more answers than n is not supported by this version", "best_of")
        for i, stop in enumerate(self.stops):
            _check.text(stop, f"stop[{i}]", zero_bytes=False)
        for name in ("stop_token_ids", "golden_token_ids"):
            if getattr(self, name) is not None:
                _check.ids(getattr(self, name), name)
        if self.logit_bias is not None:
            _check.bias(self.logit_bias, "logit_bias")
        self.form()

    def form(self) -> "Optional[Form]":
        """What is asked of the answer's form, by either name."""
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams) or self.so_args:
                raise InvalidError("invalid", "structured_outputs must be a StructuredOutputsParams, and so_args absent then", "structured_outputs")
            s = self.structured_outputs
            return Form(*s.form(), s.disable_any_whitespace, s.property_order == "declared", not s.end_in_time)
        if not self.so_args:
            return None
        if not isinstance(self.so_args, Mapping) or not {"schema_type", "schema"} <= set(self.so_args) <= {"schema_type", "schema", *SO_TRIGGERS}:
            raise InvalidError("invalid", "so_args must have schema_type and schema, and may have trigger_token_ids and bound_token_id", "so_args")
        kind, schema = self.so_args["schema_type"], self.so_args["schema"]
        trigger, bound = (self.so_args.get(n) for n in SO_TRIGGERS)
        if kind not in ("json", "regex", "ebnf"):
            raise InvalidError("invalid", "schema_type must be json, regex or ebnf", "so_args")
        if kind == "json" and not isinstance(schema, str):
            schema = _check.json_text(schema, "so_args")
        _check.text(schema, "so_args")
        return Form(kind, schema, trigger=_check.ids(trigger or (), "so_args"), bound=-1 if bound is None else _check.whole(bound, "so_args", 0, _check.INT32[1]))

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
        asked = 0 if self.logprobs is None or isinstance(self.logprobs, bool) else int(self.logprobs)
        return max(asked, int(self.top_logprobs))

    @property
    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else _check.listed(self.stop, "stop", "a text or a list of texts")
