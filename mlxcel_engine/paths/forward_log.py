"""Sees from outside which forwards a loop makes, so that evidence is observed and never assumed."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import mlx.core as mx
    import mlx.nn as nn

    from mlxcel_engine.paths.layer_probe import LayerProbe


_MARK = "_mlxcel_recorded"


@dataclass
class ForwardLog:
    """What went through the model for a prompt of ``prompt_tokens``: its pieces, and the forwards after it.

    ``partition`` lists the ``[start, stop)`` pieces of the prompt in order, ``decode_forwards`` counts the rest,
    ``caches`` holds the class names of the cache objects that the model was handed, ``widths`` counts the decode
    forwards by how many rows they had. ``adopted`` prompt tokens are known to come from a cache.

    Where other requests use the model at the same time, the path says before each turn which forward of it is the
    request's: the one after ``ahead`` others, as row ``row``; none if negative. None means that all are. ``together``
    rows share a decode step where that cannot be seen from one forward.
    """

    prompt_tokens: int
    adopted: int = 0
    row: int = 0
    ahead: int | None = None
    together: int | None = None
    partition: list[tuple[int, int]] = field(default_factory=list)
    decode_forwards: int = 0
    caches: set[str] = field(default_factory=set)
    widths: Counter[int] = field(default_factory=Counter)
    _inputs: list[tuple[mx.array, int]] = field(default_factory=list)

    @property
    def forwarded(self) -> int:
        """Prompt tokens that went through the model."""
        return sum(stop - start for start, stop in self.partition)

    @property
    def shared(self) -> int:
        """Decode forwards, or steps, of more than one row."""
        return self.widths.total() - self.widths[1]

    @property
    def forwards(self) -> int:
        """Forwards of the request so far."""
        return len(self.partition) + self.decode_forwards

    def add(self, inputs: mx.array, caches: Iterable[Any]) -> bool:
        """Log a forward of ``inputs`` ``[B, L]`` over ``caches``; False for one that is not the request's."""
        if self.ahead is not None:
            self.ahead -= 1
            if self.ahead != -1:
                return False
        self.caches.update(type(cache).__name__ for cache in caches)
        start = self.partition[-1][1] if self.partition else self.adopted
        if start >= self.prompt_tokens:
            self.decode_forwards += 1
            self.widths[self.together or inputs.shape[0]] += 1
        else:
            self.partition.append((start, start + inputs.shape[1]))
            self._inputs.append((inputs, self.row))
        return True

    def prompt_ids(self) -> tuple[int, ...]:
        """The ids of the prompt as the model got them, without the adopted ones; waits for the device."""
        return tuple(int(i) for inputs, row in self._inputs for i in np.array(inputs)[row])


@contextmanager
def record_forwards(model: nn.Module, log: ForwardLog, probe: LayerProbe | None = None) -> Iterator[None]:
    """Add every call of ``model`` to ``log`` while the context is open, and let ``probe`` look at its layers.

    The object stays the same one, and its class keeps its name and module: only its type's ``__call__`` is
    overridden, so no loop can tell the difference.

    Raises:
        RunError: a context is open on ``model`` already.

    """
    original: Any = type(model)
    if hasattr(original, _MARK):
        raise RunError("another run on this model is still open; close it first")

    def logged(self: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        ours = log.add(inputs, kwargs.get("cache") or ())
        if probe is None or not ours:
            return original.__call__(self, inputs, *args, **kwargs)
        probe.begin(log.forwards - 1, log.row)
        logits = original.__call__(self, inputs, *args, **kwargs)
        probe.end(logits)
        return logits

    namespace = {
        "__call__": logged,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        _MARK: True,
    }
    model.__class__ = type(original.__name__, (original,), namespace)
    try:
        with nullcontext() if probe is None else probe.attached(model):
            yield
    finally:
        model.__class__ = original
