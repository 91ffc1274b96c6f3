"""The contract of KV storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from mlxcel_engine.engine.types import SequenceId


LARGEST_RESERVE = 1024
"""Tokens; a longer hint of what a sequence may still generate is not believed until it gets there."""


@dataclass
class KvCounters:
    """What the storage was seen to do; only ever grows.

    ``attention_calls`` counts a layer's call once a forward, ``grown`` the slabs that were copied into larger ones.
    The others count how a row was read in a layer: ``slices`` as one stretch, ``gathers`` several stretches copied
    together, ``splits`` stretch by stretch; of these, ``grouped`` in one call with other rows, and ``shared`` behind a
    prefix that was read once for several rows.
    """

    attention_calls: int = 0
    grown: int = 0
    slices: int = 0
    gathers: int = 0
    splits: int = 0
    grouped: int = 0
    shared: int = 0


@dataclass(frozen=True)
class KvUsage:
    """Room, in blocks of 16 tokens: ``used`` by sequences and shared prefixes, ``total`` if it is fixed.

    Storages without blocks count as many as each sequence's tokens would fill. ``nbytes`` is the memory held.
    """

    used: int
    total: int | None
    nbytes: int


class DetachedKv(Protocol):
    """Keys and values of ``tokens`` tokens outside any sequence; to be released when they are no longer wanted."""

    @property
    def tokens(self) -> int:
        """Tokens held."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that these tokens fill, shared or not."""
        ...

    @property
    def released(self) -> bool:
        """Whether :meth:`release` was called; such KV can no longer be adopted."""
        ...

    def part(self, start: int, stop: int) -> DetachedKv:
        """Keep the tokens ``[start, stop)`` of these on their own; both are to be released.

        Raises:
            EngineError: these cannot be divided there.

        """
        ...

    def joined(self, others: Sequence[DetachedKv]) -> DetachedKv:
        """Keep these tokens followed by those of ``others``, as one; all are to be released.

        Raises:
            EngineError: these cannot be joined.

        """
        ...

    def release(self) -> None:
        """Let go of them; again, it does nothing."""
        ...


class KvForward(Protocol):
    """One forward over some rows: what the model is handed, and what makes it count."""

    @property
    def caches(self) -> list[Any]:
        """One object a layer, to be passed to the model as ``cache``."""
        ...

    def verify(self) -> None:
        """Check, after the model returned, that it used the caches as they are meant.

        Raises:
            EngineError: a layer's keys were stored but never attended to through its view.

        """
        ...

    def commit(self) -> None:
        """Count the forward's tokens in every row; once, after everything that can fail."""
        ...


class KvStore(Protocol):
    """Keys and values of many sequences. Lengths are in tokens; an unknown sequence raises KeyError.

    ``batched`` tells whether one forward may hold several rows. ``name`` stands in records.
    """

    name: str
    batched: bool
    counters: KvCounters

    def create(self, sequence: SequenceId, tokens: int, reserve: int, prefix: DetachedKv | None = None) -> None:
        """Make room for ``sequence``: ``tokens`` will come for sure, ``reserve`` more perhaps.

        It is empty, or begins with ``prefix``, which stays valid.

        Raises:
            EngineError: ``prefix`` is of another storage, was released, or finds no room; nothing has changed.

        """
        ...

    def drop(self, sequence: SequenceId) -> None:
        """Forget ``sequence`` and free its storage."""
        ...

    def forward(self, rows: Sequence[SequenceId], tokens: int, width: int | None = None) -> KvForward:
        """Begin a forward of ``tokens`` new tokens in each of ``rows``; without its commit nothing has changed.

        With a ``width`` the model gets as many rows; those behind ``rows`` are padding, whose keys are not stored and
        whose attention is zero.
        """
        ...

    def length(self, sequence: SequenceId) -> int:
        """Committed tokens."""
        ...

    def trim(self, sequence: SequenceId, tokens: int) -> None:
        """Drop the last ``tokens`` committed tokens.

        Raises:
            EngineError: fewer are held, or this storage cannot go back; nothing has changed.

        """
        ...

    def snapshot(self, sequence: SequenceId, tokens: int) -> DetachedKv:
        """Keep the first ``tokens`` tokens of ``sequence``, which goes on; shared where the storage can share.

        Raises:
            EngineError: fewer are held, or this storage keeps no such prefix.

        """
        ...

    def detach(self, sequence: SequenceId) -> DetachedKv:
        """Move all of ``sequence`` out of the storage, so that its room is free; the sequence is dropped."""
        ...

    def nbytes(self, sequence: SequenceId) -> int:
        """Bytes of the committed keys and values of ``sequence``."""
        ...

    def usage(self) -> KvUsage:
        """How much room is taken."""
        ...

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """Every array that holds ``sequence``, for evaluation."""
        ...
