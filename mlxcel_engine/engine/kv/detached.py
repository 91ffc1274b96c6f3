"""Keys and values outside any sequence, as copies; and the checks that all storages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import mlx.core as mx

from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.engine.types import SequenceId

Kept = TypeVar("Kept", bound="DetachedKv")


@dataclass
class CopiedKv:
    """Copies: per layer keys and values ``[1, Hkv, tokens, D]``. Implements :class:`DetachedKv`."""

    layers: list[tuple[mx.array, mx.array]]
    tokens: int
    released: bool = False

    @classmethod
    def of(cls, layers: list[tuple[mx.array, mx.array]], tokens: int) -> CopiedKv:
        """Copy what may be slices of larger arrays, and wait for it, so that those are not kept alive."""
        copies = [(materialized(keys), materialized(values)) for keys, values in layers]
        mx.eval(copies)
        return cls(copies, tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def release(self) -> None:
        """Free the copies."""
        self.layers, self.released = [], True


def materialized(array: mx.array) -> mx.array:
    """A copy with memory of its own, whatever ``array`` is a view of."""
    return array + mx.zeros((), dtype=array.dtype)


def check_held(sequence: SequenceId, tokens: int, length: int) -> None:
    """Check that a sequence of ``length`` tokens has ``tokens`` to give.

    Raises:
        EngineError: it has not.

    """
    if not 0 <= tokens <= length:
        raise EngineError(f"sequence {sequence}: {tokens} tokens asked for, {length} held")


def check_adoptable(sequence: SequenceId, length: int, kept: DetachedKv, kind: type[Kept]) -> Kept:
    """Return ``kept`` as the ``kind`` that the storage of ``sequence`` can adopt.

    Raises:
        EngineError: the sequence is not empty, or ``kept`` is of another kind or was released.

    """
    if length:
        raise EngineError(f"sequence {sequence}: {length} tokens held already; adopt into an empty sequence")
    if not isinstance(kept, kind):
        raise EngineError(f"sequence {sequence}: cannot adopt {type(kept).__name__}; it is of another storage")
    if kept.released:
        raise EngineError(f"sequence {sequence}: cannot adopt {kept.tokens} tokens of KV that was released")
    return kept
