"""Keys and values outside any sequence, as copies; and the checks that all storages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import mlx.core as mx

from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.engine.types import SequenceId

LayerKv: TypeAlias = "tuple[mx.array, mx.array]"
Kept = TypeVar("Kept", bound="DetachedKv")


@dataclass
class CopiedKv:
    """Copies: per layer keys and values ``[1, Hkv, tokens, D]``, None where a layer has none. A :class:`DetachedKv`."""

    layers: list[LayerKv | None]
    tokens: int
    released: bool = False

    @classmethod
    def of(cls, layers: list[LayerKv | None], tokens: int) -> CopiedKv:
        """Copy what may be slices of larger arrays, and wait for it, so that those are not kept alive."""
        copies = [None if pair is None else (materialized(pair[0]), materialized(pair[1])) for pair in layers]
        mx.eval([pair for pair in copies if pair is not None])
        return cls(list(copies), tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(pair[0].nbytes + pair[1].nbytes for pair in self.layers if pair is not None)

    def part(self, start: int, stop: int) -> CopiedKv:
        """See :meth:`DetachedKv.part`; a copy."""
        check_kept(self)
        if not 0 <= start <= stop <= self.tokens:
            raise EngineError(f"of {self.tokens} tokens, [{start},{stop}) cannot be kept")
        cut = [
            None if pair is None else (pair[0][..., start:stop, :], pair[1][..., start:stop, :]) for pair in self.layers
        ]
        return CopiedKv.of(cut, stop - start)

    def joined(self, others: Sequence[DetachedKv]) -> CopiedKv:
        """See :meth:`DetachedKv.joined`; a copy, lazy."""
        parts = [self, *(other for other in others if isinstance(other, CopiedKv))]
        if len(parts) <= len(others):
            raise EngineError("copies of keys and values can only be joined with copies")
        check_kept(*parts)
        layers: list[LayerKv | None] = []
        for pairs in zip(*(part.layers for part in parts), strict=True):
            held = [pair for pair in pairs if pair is not None]
            joined = [mx.concatenate(list(arrays), axis=2) for arrays in zip(*held, strict=True)]
            layers.append((joined[0], joined[1]) if held else None)
        return CopiedKv(layers, sum(part.tokens for part in parts))

    def release(self) -> None:
        """Free the copies."""
        self.layers, self.released = [], True


def materialized(array: mx.array) -> mx.array:
    """A copy with memory of its own, whatever ``array`` is a view of."""
    return array + mx.zeros((), dtype=array.dtype)


def check_kept(*kept: DetachedKv) -> None:
    """Check that none of ``kept`` was released.

    Raises:
        EngineError: one was.

    """
    for one in kept:
        if one.released:
            raise EngineError(f"{one.tokens} tokens of KV were released and cannot be used any more")


def check_held(sequence: SequenceId, tokens: int, length: int) -> None:
    """Check that a sequence of ``length`` tokens has ``tokens`` to give.

    Raises:
        EngineError: it has not.

    """
    if not 0 <= tokens <= length:
        raise EngineError(f"sequence {sequence}: {tokens} tokens asked for, {length} held")


def check_adoptable(sequence: SequenceId, kept: DetachedKv, kind: type[Kept]) -> Kept:
    """Return ``kept`` as the ``kind`` that the storage of ``sequence`` can adopt.

    Raises:
        EngineError: ``kept`` is of another kind or was released.

    """
    if not isinstance(kept, kind):
        raise EngineError(f"sequence {sequence}: cannot adopt {type(kept).__name__}; it is of another storage")
    if kept.released:
        raise EngineError(f"sequence {sequence}: cannot adopt {kept.tokens} tokens of KV that was released")
    return kept
