"""DRY's sequence breakers as token ids, the way llama.cpp resolves them. No MLX.

A token whose text contains a breaker is a breaker by itself. A token whose text ends with the beginning of one is
the head of a sequence: head, then the tokens of the rest of the breaker as the tokenizer writes it on its own.
Source of the rules: llama.cpp, ``llama_sampler_init_dry`` and its helper, with their bounds on length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_CHARS: Final = 40  # of a breaker; the rest of it is cut off
_MAX_TAIL: Final = 20  # tokens after the head


@dataclass(frozen=True)
class Breakers:
    """Which token sequences break a repetition: by their tail, the ids that each may have as head.

    The empty tail holds the single-token breakers. A tail occurs once.
    """

    heads: tuple[tuple[tuple[int, ...], frozenset[int]], ...] = ()

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Breakers:
        """Breakers given as token sequences of at least one id each."""
        heads: dict[tuple[int, ...], set[int]] = {}
        for head, *tail in sequences:
            heads.setdefault(tuple(tail), set()).add(head)
        return cls(tuple((tail, frozenset(ids)) for tail, ids in sorted(heads.items())))

    @property
    def singles(self) -> frozenset[int]:
        """The tokens that break a repetition alone; they are never penalized."""
        return dict(self.heads).get((), frozenset())


class BreakerTokenizer(Protocol):
    """What the resolution needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """The ids of ``text``."""
        ...

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        """The text of ids."""
        ...


class BreakerResolver:
    """Resolves breakers with one tokenizer; keeps the vocabulary's texts and what it resolved before.

    ``vocab_size`` is the tokenizer's; ids that the model has beyond it are no breakers. One per loaded model.
    """

    def __init__(self, tokenizer: BreakerTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._texts: list[str] | None = None
        self._known: dict[tuple[str, ...], Breakers] = {}

    def __call__(self, breakers: tuple[str, ...]) -> Breakers:
        """The token sequences of ``breakers``; the first call decodes the whole vocabulary."""
        if breakers not in self._known:
            sequences = {sequence for text in breakers for sequence in self._sequences(text[:_MAX_CHARS])}
            self._known[breakers] = Breakers.of(sorted(sequences))
        return self._known[breakers]

    def _sequences(self, breaker: str) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        tails: dict[int, tuple[int, ...]] = {}
        for token, text in enumerate(self._vocabulary()):
            if breaker in text:
                found.append((token,))
                continue
            for matched in range(1, min(len(breaker), len(text) + 1)):
                if text.endswith(breaker[:matched]):
                    if matched not in tails:
                        rest = self._tokenizer.encode(breaker[matched:], add_special_tokens=False)
                        tails[matched] = tuple(rest[:_MAX_TAIL])
                    found.append((token, *tails[matched]))
        return found

    def _vocabulary(self) -> list[str]:
        if self._texts is None:
            self._texts = [self._text(token) for token in range(self._vocab_size)]
        return self._texts

    def _text(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
