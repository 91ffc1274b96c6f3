"""Dense KV: one contiguous slab per sequence and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.kv.blocks import blocks_for
from mlxcel_engine.engine.kv.detached import CopiedKv, check_adoptable, check_held
from mlxcel_engine.engine.kv.groups import Cluster, Group, Stretch
from mlxcel_engine.engine.kv.partial import strided
from mlxcel_engine.engine.kv.store import LARGEST_RESERVE, KvCounters, KvUsage
from mlxcel_engine.engine.kv.view import ViewForward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.kv.groups import Span
    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.engine.types import SequenceId

_STEP = 256  # tokens; slabs are multiples of it


class Slab:
    """The keys and values of one sequence: per layer ``[1, Hkv, capacity, D]`` in the model's dtype.

    ``length`` tokens are committed. What lies behind them is overwritten by the next :meth:`write`.
    """

    def __init__(self, layers: int, expected: int, counters: KvCounters) -> None:
        self.length = 0
        self._expected = expected
        self._keys: list[mx.array | None] = [None] * layers
        self._values: list[mx.array | None] = [None] * layers
        self._counters = counters

    def write(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Store ``[1, Hkv, L, D]`` behind the committed tokens."""
        stop = self.length + keys.shape[2]
        old_keys, old_values = self._keys[layer], self._values[layer]
        if old_keys is None or old_values is None or stop > old_keys.shape[2]:
            self._counters.grown += old_keys is not None
            old_keys, old_values = self._grow(old_keys, keys, stop), self._grow(old_values, values, stop)
        old_keys[..., self.length : stop, :] = keys
        old_values[..., self.length : stop, :] = values
        self._keys[layer], self._values[layer] = old_keys, old_values

    def _grow(self, held: mx.array | None, new: mx.array, needed: int) -> mx.array:
        """Return a slab for at least ``needed`` tokens: as long as expected at first, later half as much again."""
        if held is None:
            return _with_room(new[..., :0, :], max(needed, self._expected))
        return _with_room(held[..., : self.length, :], max(needed, held.shape[2] * 3 // 2))

    def adopt(self, layer: int, keys: mx.array, values: mx.array, tokens: int) -> None:
        """Begin an empty slab with the keys and values of ``tokens`` tokens, ``[1, Hkv, tokens, D]``; a copy, lazy."""
        room = max(tokens, self._expected)
        self._keys[layer], self._values[layer] = _with_room(keys, room), _with_room(values, room)
        self.length = tokens

    def whole(self, layer: int) -> tuple[mx.array, mx.array]:
        """Return both arrays of ``layer``, ``[1, Hkv, capacity, D]``."""
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise KeyError(f"layer {layer} holds nothing")
        return keys, values

    def read(self, layer: int, length: int) -> tuple[mx.array, mx.array]:
        """Return the first ``length`` keys and values, ``[1, Hkv, length, D]``; a slice, no copy."""
        keys, values = self.whole(layer)
        return keys[..., :length, :], values[..., :length, :]

    def holds(self, layer: int) -> bool:
        """Whether anything was ever written to ``layer``; a layer without attention never is."""
        return self._keys[layer] is not None

    def arrays(self) -> list[mx.array]:
        """Every array of the slab."""
        return [array for array in (*self._keys, *self._values) if array is not None]


def _with_room(held: mx.array, capacity: int) -> mx.array:
    """Return ``held`` ``[1, Hkv, T, D]`` with room for at least ``capacity`` tokens, zeros behind what it holds."""
    batch, heads, tokens, width = held.shape
    room = -(-capacity // _STEP) * _STEP
    empty = mx.zeros((batch, heads, room - tokens, width), dtype=held.dtype)
    return mx.concatenate([held, empty], axis=2) if tokens else empty


class _SlabRows:
    """The slabs of one forward. Implements :class:`~mlxcel_engine.engine.kv.view.RowsKv`."""

    def __init__(self, slabs: list[Slab], tokens: int) -> None:
        self._slabs = slabs
        self._totals = [slab.length + tokens for slab in slabs]

    @property
    def lengths(self) -> list[int]:
        return [slab.length for slab in self._slabs]

    def append(self, layer: int, keys: mx.array, values: mx.array) -> None:
        if len(self._slabs) == 1:
            self._slabs[0].write(layer, keys, values)
            return
        for row, slab in enumerate(self._slabs):
            slab.write(layer, keys[row : row + 1], values[row : row + 1])

    def read(self, layer: int, row: int) -> tuple[mx.array, mx.array]:
        return self._slabs[row].read(layer, self._totals[row])

    def spans(self) -> list[list[Span]]:
        return [[(0, total)] for total in self._totals]

    def clusters(self) -> list[Cluster]:
        alone = [Group((row,), (Stretch(0, total),)) for row, total in enumerate(self._totals)]
        return [Cluster((), tuple(alone))]

    def stretch(self, layer: int, rows: tuple[int, ...], stretch: Stretch) -> tuple[mx.array, mx.array]:
        (row,) = rows
        return strided(*self._slabs[row].whole(layer), 1, stretch)

    def commit(self, tokens: int) -> None:
        for slab in self._slabs:
            slab.length += tokens


class DenseKv:
    """A slab per sequence. Implements :class:`~mlxcel_engine.engine.kv.store.KvStore`."""

    name = "dense"
    batched = True

    def __init__(self, layers: int, exact: bool = True, alone: bool = False) -> None:
        """Keep the KV of ``layers`` layers; ``exact`` and ``alone`` are those of :class:`ViewForward`."""
        self.counters = KvCounters()
        self._exact, self._alone = exact, alone
        self._layers = layers
        self._slabs: dict[SequenceId, Slab] = {}

    def create(self, sequence: SequenceId, tokens: int, reserve: int, prefix: DetachedKv | None = None) -> None:
        """See :meth:`KvStore.create`; ``prefix`` is copied."""
        slab = Slab(self._layers, tokens + min(reserve, LARGEST_RESERVE), self.counters)
        if prefix is not None:
            copied = check_adoptable(sequence, prefix, CopiedKv)
            for layer, pair in enumerate(copied.layers):
                if pair is not None:
                    slab.adopt(layer, *pair, copied.tokens)
        self._slabs[sequence] = slab

    def drop(self, sequence: SequenceId) -> None:
        """See :meth:`KvStore.drop`."""
        del self._slabs[sequence]

    def forward(self, rows: Sequence[SequenceId], tokens: int, width: int | None = None) -> ViewForward:
        """See :meth:`KvStore.forward`."""
        slabs = _SlabRows([self._slabs[row] for row in rows], tokens)
        return ViewForward(
            slabs, self._layers, tokens, self.counters, exact=self._exact, alone=self._alone, width=width
        )

    def length(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.length`."""
        return self._slabs[sequence].length

    def trim(self, sequence: SequenceId, tokens: int) -> None:
        """See :meth:`KvStore.trim`."""
        slab = self._slabs[sequence]
        check_held(sequence, tokens, slab.length)
        slab.length -= tokens

    def snapshot(self, sequence: SequenceId, tokens: int) -> CopiedKv:
        """See :meth:`KvStore.snapshot`; a copy."""
        slab = self._slabs[sequence]
        check_held(sequence, tokens, slab.length)
        held = [slab.read(layer, tokens) if tokens and slab.holds(layer) else None for layer in range(self._layers)]
        return CopiedKv.of(held, tokens)

    def detach(self, sequence: SequenceId) -> CopiedKv:
        """See :meth:`KvStore.detach`; a copy without the slab's spare room."""
        kept = self.snapshot(sequence, self._slabs[sequence].length)
        self.drop(sequence)
        return kept

    def nbytes(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.nbytes`."""
        slab = self._slabs[sequence]
        return sum(array.nbytes // array.shape[2] * slab.length for array in slab.arrays())

    def usage(self) -> KvUsage:
        """See :meth:`KvStore.usage`; the bytes are those of the slabs."""
        slabs = self._slabs.values()
        nbytes = sum(array.nbytes for slab in slabs for array in slab.arrays())
        return KvUsage(sum(blocks_for(slab.length) for slab in slabs), None, nbytes)

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """See :meth:`KvStore.arrays`."""
        return self._slabs[sequence].arrays()
