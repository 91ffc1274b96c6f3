"""Evaluates a model's whole module tree, so that no lazy array is left for another thread to meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.nn as nn


def module_arrays(model: nn.Module) -> Iterator[mx.array]:
    """Yield every array reachable from ``model``.

    ``parameters()`` leaves out private attributes, such as the frequencies of the llama3 and yarn ropes; those
    arrays are lazy, and used first in another thread they raise "There is no Stream in current thread".
    """
    seen: set[int] = set()
    pending: list[Any] = [model]
    while pending:
        item = pending.pop()
        if isinstance(item, mx.array):
            yield item
            continue
        if id(item) in seen or isinstance(item, (str, bytes, int, float, type, type(None))):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple, set)):
            pending.extend(item)
        if type(item).__module__.startswith(("mlx.nn", "mlx_lm.")) or isinstance(item, dict):
            pending.extend(getattr(item, "__dict__", {}).values())


def evaluate_everything(model: nn.Module) -> None:
    """Evaluate every array of :func:`module_arrays`."""
    mx.eval(list(module_arrays(model)))
