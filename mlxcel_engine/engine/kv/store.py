"""The contract of KV storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from mlxcel_engine.engine.types import SequenceId


@dataclass
class KvCounters:
    """What the storage was seen to do; only ever grows. ``attention_calls`` counts a layer's call once a forward."""

    attention_calls: int = 0
    grown: int = 0


class KvForward(Protocol):
    """One forward over some rows: what the model is handed, and what makes it count."""

    @property
    def caches(self) -> list[Any]:
        """One object a layer, to be passed to the model as ``cache``."""
        ...

    def commit(self) -> None:
        """Count the forward's tokens in every row; to be called once, after everything that can fail.

        Raises:
            EngineError: a layer's keys were stored but never attended to through its view.

        """
        ...


class KvStore(Protocol):
    """Keys and values of many sequences. Lengths are in tokens; an unknown sequence raises KeyError.

    ``batched`` tells whether one forward may hold several rows. ``name`` stands in records.
    """

    name: str
    batched: bool
    counters: KvCounters

    def create(self, sequence: SequenceId, tokens: int, reserve: int) -> None:
        """Make room for ``sequence``, empty: ``tokens`` will come for sure, ``reserve`` more perhaps."""
        ...

    def drop(self, sequence: SequenceId) -> None:
        """Forget ``sequence`` and free its storage."""
        ...

    def forward(self, rows: Sequence[SequenceId], tokens: int) -> KvForward:
        """Begin a forward of ``tokens`` new tokens in each of ``rows``; without its commit nothing has changed."""
        ...

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """Every array that holds ``sequence``, for evaluation."""
        ...
