"""What a model's attention sees of our KV storage during one forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from mlxcel_engine.engine.kv.causal import attend_causal, query_blocks
from mlxcel_engine.engine.kv.partial import Reading, attend_parts, attend_row, many_keys
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from mlxcel_engine.engine.kv.groups import Cluster, Span, Stretch
    from mlxcel_engine.engine.kv.store import KvCounters


class RowsKv(Protocol):
    """The storage of the rows of one forward: written past their lengths, read with what was written."""

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each row."""
        ...

    def append(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Store ``[B, Hkv, L, D]`` behind the committed tokens of each row, to be overwritten unless committed."""
        ...

    def read(self, layer: int, row: int) -> tuple[mx.array, mx.array]:
        """Return all keys and values of a row, the appended ones included, ``[1, Hkv, T, D]``."""
        ...

    def spans(self) -> list[list[Span]]:
        """Where each row's tokens lie, the appended ones included."""
        ...

    def clusters(self) -> list[Cluster]:
        """How the rows may best be read together."""
        ...

    def stretch(self, layer: int, rows: tuple[int, ...], stretch: Stretch) -> tuple[mx.array, mx.array]:
        """Return keys ``[R, Hkv, D, T]`` and values ``[R, Hkv, T, D]`` of ``stretch`` in ``rows``, without a copy."""
        ...

    def commit(self, tokens: int) -> None:
        """Count ``tokens`` more in each row."""
        ...


class ViewForward:
    """A forward through :class:`LayerView` objects. Implements :class:`~mlxcel_engine.engine.kv.store.KvForward`.

    ``exact`` keeps to one call of MLX's attention for each row, over its keys in one piece. Otherwise a float32 model
    attends by ``partial.py`` and ``causal.py`` where they are faster. ``alone`` reads each row by itself, in one piece,
    whatever is beside it. ``width`` is that of :meth:`KvStore.forward`.
    """

    def __init__(
        self,
        rows: RowsKv,
        layers: int,
        tokens: int,
        counters: KvCounters,
        *,
        exact: bool,
        alone: bool,
        width: int | None = None,
    ) -> None:
        self.rows = rows
        self.tokens = tokens
        self.exact = exact
        self.counters = counters
        lengths = rows.lengths
        self.count = len(lengths)
        self.padding = 0 if width is None else width - self.count
        self.one = self.count + self.padding == 1
        number = len(set(lengths)) == 1 if width is None else tokens > 1  # with a width, one kind of offset
        self.offset: int | mx.array = lengths[0] if number else mx.array([*lengths, *[0] * self.padding])
        self.pieces = [len(spans) for spans in rows.spans()]
        parts = self.count > 1 or self.pieces[0] > 1 or many_keys(1, lengths[0] + tokens)
        together = tokens == 1 and parts and not exact and not alone
        self.reading = Reading.of(rows.clusters()) if together else None
        self.blocks = query_blocks(lengths[0], tokens) if tokens > 1 and not exact else None
        self.caches = [LayerView(self, layer) for layer in range(layers)]

    def verify(self) -> None:
        """See :meth:`KvForward.verify`."""
        for layer, view in enumerate(self.caches):
            if view.unread:
                raise EngineError(f"layer {layer} did not attend through its KV view; step this family row by row")

    def commit(self) -> None:
        """See :meth:`KvForward.commit`."""
        self.rows.commit(self.tokens)

    def count_whole(self) -> None:
        """Count that a layer read every row in one piece."""
        self.counters.attention_calls += 1
        gathers = sum(pieces > 1 for pieces in self.pieces)
        self.counters.gathers += gathers
        self.counters.slices += self.count - gathers

    def count_reading(self, reading: Reading) -> None:
        """Count that a layer read the rows as ``reading`` says."""
        self.counters.attention_calls += 1
        for cluster in reading.clusters:
            self.counters.shared += len(cluster.rows) if cluster.prefix else 0
            for group in cluster.groups:
                several = len(cluster.prefix) + len(group.stretches) > 1
                self.counters.splits += len(group.rows) if several else 0
                self.counters.slices += 0 if several else len(group.rows)
                self.counters.grouped += len(group.rows) if len(group.rows) > 1 else 0


class LayerView:
    """Stands where ``mlx-lm``'s cache object of one layer would stand.

    A single row behaves as ``KVCache`` does. Several rows take one token each, and each attends over its own exact
    length.
    """

    def __init__(self, forward: ViewForward, layer: int) -> None:
        self._forward = forward
        self._layer = layer
        self._returned: tuple[mx.array, mx.array] | None = None

    @property
    def offset(self) -> int | mx.array:
        """Tokens before this forward: a number when all rows agree, else int32 ``[B]``."""
        return self._forward.offset

    def make_mask(
        self, length: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask for ``length`` new tokens, as ``KVCache`` makes it; several rows decode without one.

        Raises:
            EngineError: several rows and more than one token each, or a window.

        """
        if not self._forward.one and (length > 1 or window_size is not None):
            raise EngineError("several rows decode one token each, without a window; step this family row by row")
        if window_size is not None or (return_array and length > 1):
            mask: mx.array = create_causal_mask(length, self._forward.rows.lengths[0], window_size=window_size)
            return mask
        return None if length == 1 else "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append ``[B, Hkv, L, D]`` and return what :meth:`owns` recognises: for one row, all its keys and values."""
        forward = self._forward
        forward.rows.append(self._layer, keys[: forward.count], values[: forward.count])
        self._returned = forward.rows.read(self._layer, 0) if forward.one else (keys, values)
        return self._returned

    def owns(self, keys: mx.array, values: mx.array) -> bool:
        """Whether these are the very arrays that :meth:`update_and_fetch` returned."""
        return self._returned is not None and self._returned[0] is keys and self._returned[1] is values

    @property
    def unread(self) -> bool:
        """Whether keys were appended that :meth:`attend` has not read."""
        return self._returned is not None

    def attend(self, queries: mx.array, scale: float, mask: mx.array | str | None, sinks: mx.array | None) -> mx.array:
        """Attend ``queries`` ``[B, Hq, L, D]`` over all keys held, the new ones included; returns ``[B, Hq, L, Dv]``.

        Raises:
            EngineError: several rows with a mask or with more than one token each.

        """
        forward, returned = self._forward, self._returned
        self._returned = None  # a reference kept here would turn the next append into a copy
        plain = sinks is None and queries.dtype == mx.float32 and queries.shape[2] == forward.tokens
        if returned is not None and forward.reading is not None and plain and mask is None:
            forward.count_reading(forward.reading)
            own = queries[: forward.count]
            found = attend_parts(own, returned[0].shape[1], scale, self._layer, forward.rows, forward.reading)
            return self._padded([found])
        forward.count_whole()
        if not forward.one or returned is None:
            return self._attend_rows(queries, scale, mask, sinks)
        if forward.blocks is not None and plain and mask == "causal":
            return attend_causal(queries, *returned, scale, forward.blocks)
        return self._attend_row(queries, *returned, scale, mask, sinks)

    def _attend_rows(
        self, queries: mx.array, scale: float, mask: mx.array | str | None, sinks: mx.array | None
    ) -> mx.array:
        """Attend with one call a row, each over its own keys."""
        forward = self._forward
        if mask is not None or queries.shape[2] != 1:
            raise EngineError("several rows decode one token each, without a mask; step this family row by row")
        rows = []
        for row in range(forward.count):
            keys, values = forward.rows.read(self._layer, row)
            rows.append(self._attend_row(queries[row : row + 1], keys, values, scale, None, sinks))
        return self._padded(rows)

    def _padded(self, rows: list[mx.array]) -> mx.array:
        """Put ``rows`` behind one another, zeros behind them in the place of rows that are padding."""
        if self._forward.padding:
            rows = [*rows, mx.zeros((self._forward.padding, *rows[0].shape[1:]), dtype=rows[0].dtype)]
        return rows[0] if len(rows) == 1 else mx.concatenate(rows, axis=0)

    def _attend_row(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None,
    ) -> mx.array:
        """Attend ``[1, Hq, L, D]`` over ``[1, Hkv, T, D]``: a function of these arrays alone."""
        plain = mask is None and sinks is None and queries.dtype == mx.float32
        if plain and not self._forward.exact and queries.shape[2] == 1 and many_keys(1, keys.shape[2]):
            return attend_row(queries, keys, values, scale)
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks)
