"""Sees from outside which forwards a loop makes, so that evidence is observed and never assumed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.nn as nn


@dataclass
class ForwardLog:
    """The lengths ``L`` of the inputs ``[B, L]`` of each forward, in order."""

    lengths: list[int] = field(default_factory=list)

    def partition(self, prompt_tokens: int) -> list[tuple[int, int]]:
        """The ``[start, stop)`` pieces that the forwards made of a prompt of ``prompt_tokens``."""
        pieces: list[tuple[int, int]] = []
        start = 0
        for length in self.lengths:
            if start >= prompt_tokens:
                break
            pieces.append((start, start + length))
            start += length
        return pieces


@contextmanager
def record_forwards(model: nn.Module, log: ForwardLog) -> Iterator[None]:
    """Add every call of ``model`` to ``log`` while the context is open.

    The object stays the same one, and its class keeps its name and module: only its type's ``__call__`` is
    overridden, so no loop can tell the difference.
    """
    original: Any = type(model)

    def logged(self: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        log.lengths.append(inputs.shape[1])
        return original.__call__(self, inputs, *args, **kwargs)

    namespace = {"__call__": logged, "__module__": original.__module__, "__qualname__": original.__qualname__}
    model.__class__ = type(original.__name__, (original,), namespace)
    try:
        yield
    finally:
        model.__class__ = original
