"""``mlx-lm``'s own cache objects, one list per sequence, for families that need them; one row a forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlxcel_engine.engine.kv.store import KvCounters
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.nn as nn

    from mlxcel_engine.engine.types import SequenceId


@dataclass
class _OwnForward:
    """The caches of one sequence. Implements :class:`~mlxcel_engine.engine.kv.store.KvForward`."""

    store: OwnCaches
    sequence: SequenceId
    caches: list[Any]

    def commit(self) -> None:
        self.store.unfinished.discard(self.sequence)


class OwnCaches:
    """Implements :class:`~mlxcel_engine.engine.kv.store.KvStore` over what ``make_prompt_cache`` returns.

    These objects change during a forward and cannot all be wound back, so a sequence whose forward was not committed
    cannot go on: ``unfinished`` holds it.
    """

    name = "mlx-lm caches"
    batched = False

    def __init__(self, model: nn.Module) -> None:
        self.counters = KvCounters()
        self.unfinished: set[SequenceId] = set()
        self._model = model
        self._caches: dict[SequenceId, list[Any]] = {}

    def create(self, sequence: SequenceId, tokens: int, reserve: int) -> None:  # noqa: ARG002 - they grow by themselves
        """See :meth:`KvStore.create`."""
        self._caches[sequence] = make_prompt_cache(self._model)

    def drop(self, sequence: SequenceId) -> None:
        """See :meth:`KvStore.drop`."""
        del self._caches[sequence]
        self.unfinished.discard(sequence)

    def forward(self, rows: Sequence[SequenceId], tokens: int) -> _OwnForward:  # noqa: ARG002 - they count by themselves
        """See :meth:`KvStore.forward`.

        Raises:
            EngineError: an earlier forward of the sequence failed half-way.

        """
        (sequence,) = rows
        if sequence in self.unfinished:
            raise EngineError(f"sequence {sequence}: a forward failed half-way and its caches cannot go on; close it")
        self.unfinished.add(sequence)
        return _OwnForward(self, sequence, self._caches[sequence])

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """See :meth:`KvStore.arrays`."""
        states: list[Any] = list(dict(tree_flatten([cache.state for cache in self._caches[sequence]])).values())
        return [item for item in states if isinstance(item, mx.array)]
