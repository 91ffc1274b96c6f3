"""The contract of KV storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from mlxcel_engine.engine.kv.view import KvBatchView
    from mlxcel_engine.engine.types import SequenceId


@dataclass
class KvCounters:
    """What the storage was seen to do; only ever grows."""

    attention_calls: int = 0
    grown: int = 0


class KvStore(Protocol):
    """Keys and values of many sequences. A sequence is created once and dropped once; lengths are in tokens."""

    name: str
    counters: KvCounters

    def create(self, sequence: SequenceId, reserve: int) -> None:
        """Make room for ``sequence``, empty, with ``reserve`` tokens as a hint of its final length."""
        ...

    def drop(self, sequence: SequenceId) -> None:
        """Forget ``sequence`` and free its storage. Raises KeyError for an unknown one."""
        ...

    def length(self, sequence: SequenceId) -> int:
        """Tokens whose keys and values are held."""
        ...

    def view(self, rows: Sequence[SequenceId]) -> KvBatchView:
        """Return the view that one forward over ``rows`` appends to and reads; valid until its ``commit``."""
        ...

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """Every array that holds ``sequence``, for evaluation."""
        ...
