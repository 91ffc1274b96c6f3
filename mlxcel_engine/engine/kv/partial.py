"""Decode attention put together from parts, for several rows of exact lengths, or one long row, on a CPU.

Each part is a softmax over some of the keys, kept with its maximum and its sum, so that parts can be merged: the online
softmax of Milakov and Gimelshein (2018). It lets rows share what they read, where one call of MLX's attention takes
rows of equal length only. Powers of two are taken (``powers.py``), ``log2(e)`` being part of the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.powers import LOG2_E

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcel_engine.engine.kv.groups import Cluster, Group, Stretch
    from mlxcel_engine.engine.kv.view import RowsKv

_MANY_KEYS = 512  # measured


def many_keys(rows: int, keys: int) -> bool:
    """Whether a call over the ``keys`` of each of ``rows`` gains by powers of two; these take more calls."""
    return rows * keys >= _MANY_KEYS


@dataclass(frozen=True)
class Reading:
    """How the rows of a forward are read; ``back`` ``[B]`` takes rows in the clusters' order back to the batch's."""

    clusters: tuple[Cluster, ...]
    back: mx.array | None

    @classmethod
    def of(cls, clusters: list[Cluster]) -> Reading:
        """Read as ``clusters``, which hold each row once."""
        order = [row for cluster in clusters for row in cluster.rows]
        moved = order != sorted(order)
        return cls(tuple(clusters), mx.array([order.index(row) for row in range(len(order))]) if moved else None)


@dataclass(frozen=True)
class Partial:
    """Attention of ``R`` rows over some keys, float32: ``values`` ``[R, Hkv, G, Dv]``, not yet divided by ``total``.

    ``top`` is the largest score (in powers of two) and ``total`` the sum of the weights, ``[R, Hkv, G, 1]``.
    """

    values: mx.array
    top: mx.array
    total: mx.array

    @classmethod
    def over(cls, queries: mx.array, keys: mx.array, values: mx.array) -> Partial:
        """Attend ``[R, Hkv, G, D]``, scaled, over keys ``[R, Hkv, D, T]`` and values ``[R, Hkv, T, Dv]``."""
        scores = queries @ keys
        top = scores.max(axis=-1, keepdims=True)
        weights = mx.power(2.0, scores - top)
        return cls(weights @ values, top, weights.sum(axis=-1, keepdims=True))

    @classmethod
    def over_shared(cls, queries: mx.array, keys: mx.array, values: mx.array) -> Partial:
        """As :meth:`over`, all rows over the same keys ``[1, Hkv, D, T]``, which are read once."""
        rows, heads, group, _ = queries.shape
        stacked = queries.transpose(1, 0, 2, 3).reshape(1, heads, rows * group, -1)
        part = cls.over(stacked, keys, values)

        def unstacked(array: mx.array) -> mx.array:
            return array.reshape(heads, rows, group, -1).transpose(1, 0, 2, 3)

        return cls(unstacked(part.values), unstacked(part.top), unstacked(part.total))

    @classmethod
    def joined(cls, parts: Sequence[Partial]) -> Partial:
        """Put the rows of ``parts`` behind one another."""
        if len(parts) == 1:
            return parts[0]
        fields = zip(*((part.values, part.top, part.total) for part in parts), strict=True)
        return cls(*(mx.concatenate(list(arrays)) for arrays in fields))

    def merged(self, other: Partial) -> Partial:
        """The same rows over the keys of both."""
        top = mx.maximum(self.top, other.top)
        mine, others = mx.power(2.0, self.top - top), mx.power(2.0, other.top - top)
        return Partial(self.values * mine + other.values * others, top, self.total * mine + other.total * others)

    def result(self) -> mx.array:
        """The attention ``[R, Hkv, G, Dv]``."""
        return self.values / self.total


def attend_parts(
    queries: mx.array, kv_heads: int, scale: float, layer: int, rows: RowsKv, reading: Reading
) -> mx.array:
    """Attend one token a row, float32 ``[B, Hq, 1, D]``, over all of the row's own keys; returns ``[B, Hq, 1, Dv]``."""
    batch, heads, _, width = queries.shape
    scaled = (queries * scale).reshape(batch, kv_heads, heads // kv_heads, width)
    results = [_attend_cluster(_pick(scaled, cluster.rows), layer, rows, cluster) for cluster in reading.clusters]
    found = results[0] if len(results) == 1 else mx.concatenate(results)
    if reading.back is not None:
        found = found[reading.back]
    return found.reshape(batch, heads, 1, -1)


def attend_row(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Attend one token of one row, float32 ``[1, Hq, 1, D]``, over keys in one piece ``[1, Hkv, T, D]``."""
    heads, kv_heads, width = queries.shape[1], keys.shape[1], queries.shape[3]
    powers = (queries * (scale * LOG2_E)).reshape(1, kv_heads, heads // kv_heads, width)
    return Partial.over(powers, keys.swapaxes(-1, -2), values).result().reshape(1, heads, 1, -1)


def _attend_cluster(queries: mx.array, layer: int, rows: RowsKv, cluster: Cluster) -> mx.array:
    """Attend the queries of a cluster, in the order of its rows."""
    if not cluster.prefix:
        found = [_attend_group(mine, layer, rows, group) for group, mine in _groups(cluster, queries)]
        return found[0] if len(found) == 1 else mx.concatenate(found)
    scaled = queries * LOG2_E
    own = Partial.joined([_own_part(mine, layer, rows, group) for group, mine in _groups(cluster, scaled)])
    first = cluster.rows[:1]
    shared = [Partial.over_shared(scaled, *rows.stretch(layer, first, stretch)) for stretch in cluster.prefix]
    return reduce(Partial.merged, shared, own).result()


def _groups(cluster: Cluster, queries: mx.array) -> Iterator[tuple[Group, mx.array]]:
    """Each group with its queries."""
    done = 0
    for group in cluster.groups:
        yield group, _pick(queries, range(done, done + len(group.rows)))
        done += len(group.rows)


def _own_part(scaled: mx.array, layer: int, rows: RowsKv, group: Group) -> Partial:
    runs = [Partial.over(scaled, *rows.stretch(layer, group.rows, stretch)) for stretch in group.stretches]
    return reduce(Partial.merged, runs)


def _attend_group(queries: mx.array, layer: int, rows: RowsKv, group: Group) -> mx.array:
    """Attend rows that share nothing: few keys in the fewest calls, many with the cheaper power."""
    tokens = sum(stretch.tokens for stretch in group.stretches)
    if len(group.stretches) > 1 or many_keys(len(group.rows), tokens):
        return _own_part(queries * LOG2_E, layer, rows, group).result()
    keys, values = rows.stretch(layer, group.rows, group.stretches[0])
    return mx.softmax(queries @ keys, axis=-1) @ values


def _pick(array: mx.array, rows: Sequence[int]) -> mx.array:
    """The given rows: the array itself or a slice where that is possible."""
    first, number = rows[0], len(rows)
    if list(rows) != list(range(first, first + number)):
        return array[mx.array(list(rows))]
    return array if number == array.shape[0] else array[first : first + number]


def strided(keys: mx.array, values: mx.array, rows: int, stretch: Stretch) -> tuple[mx.array, mx.array]:
    """Return keys ``[rows, Hkv, D, T]`` and values ``[rows, Hkv, T, D]`` of ``stretch`` in ``[1, Hkv, slots, D]``.

    Views without a copy, the keys turned as their product with queries wants them.
    """
    _, heads, slots, width = keys.shape
    start, step, tokens = stretch.start * width, stretch.stride * width, stretch.tokens
    transposed = mx.as_strided(keys, (rows, heads, width, tokens), (step, slots * width, 1, width), start)
    width = values.shape[3]
    start, step = stretch.start * width, stretch.stride * width
    return transposed, mx.as_strided(values, (rows, heads, tokens, width), (step, slots * width, width, 1), start)
