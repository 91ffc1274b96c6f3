"""Keeps what every layer of a model put out in one chosen forward of a request."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.nn as nn
    from numpy.typing import NDArray


class LayerProbe:
    """To be handed to :func:`record_forwards` by the path; reads forward number ``forward`` of the request.

    ``outputs`` then holds, by ``layer N`` in the order of the layers and at last ``logits``, the request's last
    position of each output, float32 ``[D]``. It stays empty if the forward never came.
    """

    def __init__(self, forward: int) -> None:
        self.forward = forward
        self.outputs: dict[str, NDArray[np.float32]] = {}
        self._row: int | None = None
        self._lazy: dict[str, mx.array] = {}

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Listen to the layers of ``model`` while the context is open; they stay the same objects."""
        layers: list[Any] = list(model.layers)
        kinds = [type(layer) for layer in layers]
        for number, layer in enumerate(layers):
            layer.__class__ = self._listening(kinds[number], f"layer {number}")
        try:
            yield
        finally:
            for layer, kind in zip(layers, kinds, strict=True):
                layer.__class__ = kind

    def begin(self, forward: int, row: int) -> None:
        """Say that the request's forward number ``forward`` is about to run, with the request in ``row``."""
        self._row = row if forward == self.forward else None

    def end(self, logits: mx.array) -> None:
        """Take the logits ``[B, L, V]`` of the forward, if it is the chosen one, and wait for it."""
        if self._row is None:
            return
        self._keep("logits", logits)
        mx.eval(self._lazy)
        self.outputs = {name: np.array(value) for name, value in self._lazy.items()}
        self._lazy, self._row = {}, None

    def _keep(self, name: str, output: Any) -> None:
        if self._row is not None:
            first = output[0] if isinstance(output, (tuple, list)) else output
            self._lazy[name] = first[self._row, -1].astype(mx.float32)

    def _listening(self, kind: type, name: str) -> type:
        keep: Any = self._keep

        def listened(layer: Any, *args: Any, **kwargs: Any) -> Any:
            output = kind.__call__(layer, *args, **kwargs)
            keep(name, output)
            return output

        namespace = {"__call__": listened, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return type(kind.__name__, (kind,), namespace)
