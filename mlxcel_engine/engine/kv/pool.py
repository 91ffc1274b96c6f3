"""The memory under paged KV: one pool per layer, and the rows of a forward that are written to and read from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS
from mlxcel_engine.engine.kv.groups import Cluster, Stretch, group_rows, progressions, shared_prefixes
from mlxcel_engine.engine.kv.partial import strided

if TYPE_CHECKING:
    from mlxcel_engine.engine.kv.blocks import Claim
    from mlxcel_engine.engine.kv.groups import Span

LEAST_SHARED = 8  # blocks; reading a shorter prefix once costs more calls than it saves


@dataclass
class Table:
    """One sequence: its blocks in order, its committed tokens, and where it expects to grow."""

    claim: Claim
    blocks: list[int] = field(default_factory=list)
    length: int = 0

    def spans(self, start: int, stop: int) -> list[Span]:
        """Where tokens ``[start, stop)`` lie: slots ``[first, behind)``, in as few stretches as there are."""
        spans: list[Span] = []
        position = start
        while position < stop:
            index, inside = divmod(position, BLOCK_TOKENS)
            slot = self.blocks[index] * BLOCK_TOKENS + inside
            taken = min(BLOCK_TOKENS - inside, stop - position)
            if spans and spans[-1][1] == slot:
                spans[-1] = (spans[-1][0], slot + taken)
            else:
                spans.append((slot, slot + taken))
            position += taken
        return spans


class Pool:
    """Keys and values of one layer, ``[1, Hkv, slots, D]`` in the model's dtype; a block is consecutive slots."""

    def __init__(self) -> None:
        self._arrays: tuple[mx.array, mx.array] | None = None

    def fitted(self, slots: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return both arrays with room for ``slots``; ``keys`` and ``values`` ``[B, Hkv, L, D]`` give the shape."""
        if self._arrays is None:
            self._arrays = (_empty(keys, slots), _empty(values, slots))
        elif self._arrays[0].shape[2] < slots:
            grown = [mx.concatenate([a, _empty(a, slots - a.shape[2])], axis=2) for a in self._arrays]
            self._arrays = (grown[0], grown[1])
        return self._arrays

    def arrays(self) -> tuple[mx.array, ...]:
        """Both arrays; none before the first write."""
        return self._arrays or ()

    def read(self, spans: list[Span]) -> tuple[mx.array, mx.array]:
        """Return the keys and values of ``spans`` in order: one stretch as a slice, several put together.

        Raises:
            KeyError: nothing was ever written.

        """
        keys, values = self._written()
        return _gather(keys, spans), _gather(values, spans)

    def stretch(self, rows: int, stretch: Stretch) -> tuple[mx.array, mx.array]:
        """Return the keys and values of ``stretch`` as :func:`strided` does."""
        return strided(*self._written(), rows, stretch)

    def _written(self) -> tuple[mx.array, mx.array]:
        if self._arrays is None:
            raise KeyError("the pool holds nothing")
        return self._arrays


def _empty(like: mx.array, slots: int) -> mx.array:
    return mx.zeros((1, like.shape[1], slots, like.shape[3]), dtype=like.dtype)


def _gather(array: mx.array, spans: list[Span]) -> mx.array:
    if len(spans) == 1:
        ((start, stop),) = spans
        return array[..., start:stop, :]
    return mx.concatenate([array[..., start:stop, :] for start, stop in spans], axis=2)


class PagedRows:
    """The tables of one forward. Implements :class:`~mlxcel_engine.engine.kv.view.RowsKv`."""

    def __init__(self, pools: list[Pool], slots: int, tables: list[Table], tokens: int) -> None:
        self._pools = pools
        self._room = slots
        self._tables = tables
        self._totals = [table.length + tokens for table in tables]
        self._reads = [table.spans(0, total) for table, total in zip(tables, self._totals, strict=True)]
        self._writes = [table.spans(table.length, table.length + tokens) for table in tables]
        self._runs = progressions([spans[0][0] for spans in self._writes]) if len(tables) > 1 else []

    @property
    def lengths(self) -> list[int]:
        """See :meth:`RowsKv.lengths`."""
        return [table.length for table in self._tables]

    def append(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """See :meth:`RowsKv.append`; of several rows, those at a regular distance are written at once."""
        pool_keys, pool_values = self._pools[layer].fitted(self._room, keys, values)
        for rows, slots in self._runs:
            pool_keys[:, :, slots, :] = keys[rows].transpose(2, 1, 0, 3)
            pool_values[:, :, slots, :] = values[rows].transpose(2, 1, 0, 3)
        if self._runs:
            return
        if len(self._writes[0]) == 1:
            ((start, stop),) = self._writes[0]
            pool_keys[..., start:stop, :] = keys
            pool_values[..., start:stop, :] = values
            return
        done = 0
        for start, stop in self._writes[0]:
            upto = done + stop - start
            pool_keys[..., start:stop, :] = keys[..., done:upto, :]
            pool_values[..., start:stop, :] = values[..., done:upto, :]
            done = upto

    def read(self, layer: int, row: int) -> tuple[mx.array, mx.array]:
        """See :meth:`RowsKv.read`."""
        return self._pools[layer].read(self._reads[row])

    def spans(self) -> list[list[Span]]:
        """See :meth:`RowsKv.spans`."""
        return self._reads

    def clusters(self) -> list[Cluster]:
        """See :meth:`RowsKv.clusters`; a prefix that is shared by reference is read once."""
        clusters = []
        for rows, blocks in shared_prefixes([table.blocks for table in self._tables], LEAST_SHARED):
            tokens = blocks * BLOCK_TOKENS
            prefix = tuple(Stretch.of(span) for span in self._tables[rows[0]].spans(0, tokens))
            own = [(row, self._tables[row].spans(tokens, self._totals[row])) for row in rows]
            clusters.append(Cluster(prefix, group_rows(own)))
        return clusters

    def stretch(self, layer: int, rows: tuple[int, ...], stretch: Stretch) -> tuple[mx.array, mx.array]:
        """See :meth:`RowsKv.stretch`."""
        return self._pools[layer].stretch(len(rows), stretch)

    def commit(self, tokens: int) -> None:
        """See :meth:`RowsKv.commit`."""
        for table in self._tables:
            table.length += tokens
