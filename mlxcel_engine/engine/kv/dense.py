"""Dense KV: one contiguous slab per sequence and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.kv.store import KvCounters
from mlxcel_engine.engine.kv.view import KvBatchView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.types import SequenceId

_STEP = 256  # tokens; slabs are multiples of it
_FIRST_RESERVE = 4096  # tokens; a longer hint is not believed until the sequence gets there


def _round_up(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


class Slab:
    """The keys and values of one sequence: per layer ``[1, Hkv, capacity, D]`` in the model's dtype.

    ``length`` tokens are held. Writing past it overwrites what an uncommitted forward left there.
    """

    def __init__(self, layers: int, reserve: int, counters: KvCounters) -> None:
        self.length = 0
        self._reserve = min(reserve, _FIRST_RESERVE)
        self._keys: list[mx.array | None] = [None] * layers
        self._values: list[mx.array | None] = [None] * layers
        self._counters = counters

    def write(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Append ``[1, Hkv, L, D]`` at ``length`` without committing it."""
        stop = self.length + keys.shape[2]
        old_keys, old_values = self._keys[layer], self._values[layer]
        if old_keys is None or old_values is None or stop > old_keys.shape[2]:
            old_keys, old_values = self._grow(old_keys, keys, stop), self._grow(old_values, values, stop)
        old_keys[..., self.length : stop, :] = keys
        old_values[..., self.length : stop, :] = values
        self._keys[layer], self._values[layer] = old_keys, old_values

    def _grow(self, held: mx.array | None, new: mx.array, needed: int) -> mx.array:
        """Return a slab for at least ``needed`` tokens: the reserve at first, later half as much again."""
        batch, heads, _, width = new.shape
        if held is None:
            return mx.zeros((batch, heads, _round_up(max(needed, self._reserve)), width), dtype=new.dtype)
        self._counters.grown += 1
        capacity = _round_up(max(needed, held.shape[2] * 3 // 2))
        room = mx.zeros((batch, heads, capacity - self.length, width), dtype=new.dtype)
        return mx.concatenate([held[..., : self.length, :], room], axis=2)

    def read(self, layer: int, length: int) -> tuple[mx.array, mx.array]:
        """Return the first ``length`` keys and values, ``[1, Hkv, length, D]``; a slice, no copy."""
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise KeyError(f"layer {layer} holds nothing")
        return keys[..., :length, :], values[..., :length, :]

    def arrays(self) -> list[mx.array]:
        """Every array of the slab."""
        return [array for array in (*self._keys, *self._values) if array is not None]


class DenseKv:
    """A slab per sequence. Implements :class:`~mlxcel_engine.engine.kv.store.KvStore`."""

    name = "dense"

    def __init__(self, layers: int) -> None:
        self.counters = KvCounters()
        self._layers = layers
        self._slabs: dict[SequenceId, Slab] = {}

    def create(self, sequence: SequenceId, reserve: int) -> None:
        """See :meth:`KvStore.create`."""
        self._slabs[sequence] = Slab(self._layers, reserve, self.counters)

    def drop(self, sequence: SequenceId) -> None:
        """See :meth:`KvStore.drop`."""
        del self._slabs[sequence]

    def length(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.length`."""
        return self._slabs[sequence].length

    def view(self, rows: Sequence[SequenceId]) -> KvBatchView:
        """See :meth:`KvStore.view`."""
        return KvBatchView([self._slabs[row] for row in rows], self._layers, self.counters)

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """See :meth:`KvStore.arrays`."""
        return self._slabs[sequence].arrays()
