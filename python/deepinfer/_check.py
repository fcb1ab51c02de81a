"""Arguments: each function returns the value in the form that the engine takes, or raises one InvalidError that names the argument."""
from __future__ import annotations

import json
import operator
import os
from typing import Any, Mapping, Optional

from .errors import InvalidError

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def fail(name: str, wanted: str, value: Any) -> InvalidError:
    return InvalidError("invalid", f"must be {wanted}, not {_shown(value)}", name)


def is_whole(value: Any) -> bool:
    """A whole number of any library; True and False are none."""
    return hasattr(value, "__index__") and not isinstance(value, bool) and not hasattr(value, "__len__")


def whole(value: Any, name: str, least: int = INT64[0], most: int = INT64[1]) -> int:
    if not is_whole(value):
        raise fail(name, "a whole number", value)
    number = operator.index(value)
    if not least <= number <= most:
        raise fail(name, f"a whole number from {least} to {most}", value)
    return number


def number(value: Any, name: str) -> float:
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__") and not is_whole(value):
        raise fail(name, "a number", value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise fail(name, "a number", value) from None


def truth(value: Any, name: str) -> bool:
    """True, False, 1 or 0."""
    if isinstance(value, (str, bytes)) or value is None or hasattr(value, "__len__") or value not in (0, 1):
        raise fail(name, "True or False", value)
    return bool(value)


def text(value: Any, name: str, zero_bytes: bool = True) -> bytes:
    if not isinstance(value, str):
        raise fail(name, "a text", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidError("invalid", "has characters that are no text (lone surrogates)", name) from None
    if not zero_bytes and b"\0" in data:
        raise InvalidError("invalid", "must not contain a 0 byte", name)
    return data


def listed(value: Any, name: str, wanted: str) -> list[Any]:
    """Any iterable with an order that is neither a text nor a mapping."""
    if isinstance(value, (str, bytes, bytearray, Mapping, set, frozenset)):
        raise fail(name, wanted, value)
    try:
        return list(value)
    except TypeError:
        raise fail(name, wanted, value) from None


def ids(value: Any, name: str) -> list[int]:
    numbers = listed(value, name, "a list of token ids")
    if set(map(type, numbers)) <= {int} and (not numbers or INT32[0] <= min(numbers) and max(numbers) <= INT32[1]):
        return numbers  # the usual case, without a look at each
    for place, i in enumerate(numbers):
        if not is_whole(i):
            raise InvalidError("invalid", f"must be a list of token ids, but has {_shown(i)} at position {place}", name)
        if not INT32[0] <= operator.index(i) <= INT32[1]:
            raise InvalidError("invalid", f"token id {i} at position {place} is no 32-bit number", name)
    return [operator.index(i) for i in numbers]


def bias(value: Any, name: str) -> list[tuple[int, float]]:
    if not isinstance(value, Mapping):
        raise fail(name, "a mapping from token ids to numbers", value)
    pairs: list[tuple[int, float]] = []
    for key, number_ in value.items():
        if not is_whole(key) and not (isinstance(key, str) and key.isdecimal() and key.isascii()):
            raise InvalidError("invalid", f"must be a mapping from token ids to numbers, but has the key {_shown(key)}", name)
        pairs.append((whole(int(key), f"{name}[{_shown(key)}]", *INT32), number(number_, f"{name}[{_shown(key)}]")))
    return pairs


def json_text(value: Any, name: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as err:
        raise InvalidError("invalid", f"cannot be written as JSON: {err}", name) from None


def fields(request: Mapping[str, Any]) -> bytes:
    """A request as JSON."""
    return b"{" + b",".join(json.dumps(name).encode() + b":" + text(json_text(value, name), name) for name, value in request.items()) + b"}"


def path(value: Any, name: str) -> bytes:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise fail(name, "the path of a directory", value)
    try:
        data = os.fsencode(value)
    except UnicodeEncodeError:
        raise InvalidError("invalid", "has characters that no path can have", name) from None
    if b"\0" in data:
        raise InvalidError("invalid", "must not contain a 0 byte", name)
    return data


def optional_whole(value: Any, name: str, least: int, most: int) -> Optional[int]:
    return None if value is None else whole(value, name, least, most)
