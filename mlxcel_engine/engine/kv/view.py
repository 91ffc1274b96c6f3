"""What a model's attention sees of the KV storage during one forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from mlxcel_engine.engine.kv.dense import Slab
    from mlxcel_engine.engine.kv.store import KvCounters


class KvBatchView:
    """One forward over some rows: their offsets, and a :class:`LayerView` per layer in ``layers``.

    The lengths of the sequences change only in :meth:`commit`, so a forward that raises leaves them as they were.
    """

    def __init__(self, slabs: list[Slab], layers: int, counters: KvCounters) -> None:
        self.slabs = slabs
        self.counters = counters
        lengths = {slab.length for slab in slabs}
        self.offset: int | mx.array = lengths.pop() if len(lengths) == 1 else mx.array([s.length for s in slabs])
        self.layers = [LayerView(self, layer) for layer in range(layers)]

    def commit(self, tokens: int) -> None:
        """Count ``tokens`` more in every row; call it once, after the model returned.

        Raises:
            EngineError: several rows, and a layer took keys without attending through this view: it was handed
                the new ones only.

        """
        if len(self.slabs) > 1 and any(layer.unread for layer in self.layers):
            raise EngineError("this family attends by hand over what the cache returned; step it row by row")
        for slab in self.slabs:
            slab.length += tokens


class LayerView:
    """Stands where ``mlx-lm``'s cache object of one layer would stand.

    A single row behaves as ``KVCache`` does. Of several rows each attends over its own exact length.
    """

    def __init__(self, batch: KvBatchView, layer: int) -> None:
        self._batch = batch
        self._layer = layer
        self._handed: tuple[mx.array, mx.array] | None = None

    @property
    def offset(self) -> int | mx.array:
        """Tokens before this forward: a number when all rows agree, else int32 ``[B]``."""
        return self._batch.offset

    def make_mask(
        self, length: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask for ``length`` new tokens, as ``KVCache`` makes it; several rows decode without one."""
        if len(self._batch.slabs) > 1:
            if length > 1 or window_size is not None:
                raise EngineError("several rows decode one token each, without a window")
            return None
        if window_size is not None or (return_array and length > 1):
            mask: mx.array = create_causal_mask(length, self._batch.slabs[0].length, window_size=window_size)
            return mask
        return None if length == 1 else "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append ``[B, Hkv, L, D]`` and return what :meth:`owns` recognises: for one row, all its keys and values."""
        first, *others = self._batch.slabs
        if not others:
            first.write(self._layer, keys, values)
            self._handed = first.read(self._layer, first.length + keys.shape[2])
        else:
            for row, slab in enumerate(self._batch.slabs):
                slab.write(self._layer, keys[row : row + 1], values[row : row + 1])
            self._handed = (keys, values)
        return self._handed

    def owns(self, keys: mx.array, values: mx.array) -> bool:
        """Whether these are the very arrays that :meth:`update_and_fetch` returned last."""
        return self._handed is not None and self._handed[0] is keys and self._handed[1] is values

    @property
    def unread(self) -> bool:
        """Whether keys were appended that :meth:`attend` has not read."""
        return self._handed is not None

    def attend(self, queries: mx.array, scale: float, mask: mx.array | str | None, sinks: mx.array | None) -> mx.array:
        """Attend ``queries`` ``[B, Hq, L, D]`` over every key held, the new ones included; ``[B, Hq, L, D]``.

        Raises:
            EngineError: several rows and a mask, which can only be the family's own: :meth:`make_mask` gave none.

        """
        handed, self._handed = self._handed, None  # a reference kept here would make the next append a copy
        counters, slabs = self._batch.counters, self._batch.slabs
        counters.attention_calls += 1
        if handed is not None and len(slabs) == 1:
            return mx.fast.scaled_dot_product_attention(queries, *handed, scale=scale, mask=mask, sinks=sinks)
        if mask is not None:
            raise EngineError("this family masks by its own rule; step it row by row")
        length = queries.shape[2]
        rows = [
            mx.fast.scaled_dot_product_attention(
                queries[row : row + 1], *slab.read(self._layer, slab.length + length), scale=scale, sinks=sinks
            )
            for row, slab in enumerate(slabs)
        ]
        return mx.concatenate(rows, axis=0)
