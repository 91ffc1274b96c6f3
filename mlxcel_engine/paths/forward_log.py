"""Sees from outside which forwards a loop makes, so that evidence is observed and never assumed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import mlx.core as mx
    import mlx.nn as nn


_MARK = "_mlxcel_recorded"


@dataclass
class ForwardLog:
    """What went through the model for a prompt of ``prompt_tokens``: its pieces, and the forwards after it.

    ``partition`` lists the ``[start, stop)`` pieces of the prompt in order, ``decode_forwards`` counts the rest,
    ``caches`` holds the class names of the cache objects that the model was handed.
    """

    prompt_tokens: int
    partition: list[tuple[int, int]] = field(default_factory=list)
    decode_forwards: int = 0
    caches: set[str] = field(default_factory=set)
    _inputs: list[mx.array] = field(default_factory=list)

    @property
    def forwarded(self) -> int:
        """Prompt tokens that went through the model."""
        return self.partition[-1][1] if self.partition else 0

    def add(self, inputs: mx.array, caches: Iterable[Any]) -> None:
        """Log a forward of ``inputs`` ``[1, L]`` over ``caches``."""
        self.caches.update(type(cache).__name__ for cache in caches)
        start = self.forwarded
        if start >= self.prompt_tokens:
            self.decode_forwards += 1
        else:
            self.partition.append((start, start + inputs.shape[1]))
            self._inputs.append(inputs)

    def prompt_ids(self) -> tuple[int, ...]:
        """The ids of the prompt as the model got them; waits for the device."""
        return tuple(int(i) for inputs in self._inputs for i in np.array(inputs[0]))


@contextmanager
def record_forwards(model: nn.Module, log: ForwardLog) -> Iterator[None]:
    """Add every call of ``model`` to ``log`` while the context is open.

    The object stays the same one, and its class keeps its name and module: only its type's ``__call__`` is
    overridden, so no loop can tell the difference.

    Raises:
        RunError: a context is open on ``model`` already.

    """
    original: Any = type(model)
    if hasattr(original, _MARK):
        raise RunError("another run on this model is still open; close it first")

    def logged(self: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        log.add(inputs, kwargs.get("cache") or ())
        return original.__call__(self, inputs, *args, **kwargs)

    namespace = {
        "__call__": logged,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        _MARK: True,
    }
    model.__class__ = type(original.__name__, (original,), namespace)
    try:
        yield
    finally:
        model.__class__ = original
