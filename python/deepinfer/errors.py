"""Errors of the engine as exceptions: the sentence is the engine's, `code` its status and `where` the field, file or position."""
from __future__ import annotations


class DeepInferError(Exception):
    """What the engine refuses or cannot do; further kinds are derived from it. code: "io", "format", ...; message: a sentence; where: what it is about."""

    def __init__(self, code: str, message: str, where: str = "") -> None:
        super().__init__(code, message, where)  # what it is made from again when it is copied or comes from another process
        self.code: str = code
        self.message: str = message
        self.where: str = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class InvalidError(DeepInferError, ValueError):
    """An argument, option or request is wrong."""


class LimitError(InvalidError):
    """It would exceed the context, the cache or another limit."""


class UnsupportedError(DeepInferError, NotImplementedError):
    """Well-formed, but this version or model cannot do it."""


class NotFoundError(DeepInferError, LookupError):
    """A file or name does not exist."""


class OutOfMemoryError(DeepInferError, MemoryError):
    """An allocation failed."""


BY_NAME: dict[str, type[DeepInferError]] = {
    "invalid": InvalidError,
    "limit": LimitError,
    "unsupported": UnsupportedError,
    "not_found": NotFoundError,
    "memory": OutOfMemoryError,
}


def make_error(code: str, message: str, where: str) -> DeepInferError:
    return BY_NAME.get(code, DeepInferError)(code, message, where)
