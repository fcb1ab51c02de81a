"""The model's tokenizer, in the shape that scripts expect."""
from __future__ import annotations

from typing import Sequence, Union

from . import _check
from ._engine import Engine


class Tokenizer:
    """Text to ids and back; LLM.get_tokenizer makes one. Works while its engine is open."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        info = engine.info
        self.bos_token_id: int = info.bos_id
        self.eos_token_id: int = info.eos_id
        self.pad_token_id: int = info.pad_id
        self.vocab_size: int = info.vocab_size
        self._control: dict[int, bool] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Spellings of control tokens become their ids; a begin-of-text id is put in front unless add_special_tokens is False."""
        ids = self._engine.encode(text, control=True)
        return [self.bos_token_id, *ids] if add_special_tokens and ids[:1] != [self.bos_token_id] else ids

    def decode(self, ids: Union[int, Sequence[int]], skip_special_tokens: bool = False) -> str:
        """Text of ids (one or several); skip_special_tokens leaves control tokens out."""
        ids = [int(ids)] if _check.is_whole(ids) else _check.ids(ids, "ids")  # type: ignore[arg-type]
        return self._engine.decode([i for i in ids if not (skip_special_tokens and self._is_control(i))])

    def _is_control(self, i: int) -> bool:
        if i not in self._control:
            spelling = self._engine.decode([i])
            self._control[i] = self._engine.encode(spelling, control=True) == [i] != self._engine.encode(spelling, control=False)
        return self._control[i]

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.encode(text, add_special_tokens)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def __len__(self) -> int:
        return self.vocab_size
