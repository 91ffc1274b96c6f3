"""The attention dispatch: ``mlx-lm``'s model code attends through our view when it is handed one.

Model modules bind ``scaled_dot_product_attention`` by name when they are imported, so the name is replaced in
each of them; replacing it in ``mlx_lm.models.base`` would change nothing. For ``mlx-lm``'s own caches the call
passes through unchanged, so its loops can share the process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mlx_lm.models import base

from mlxcel_engine.engine.kv.view import LayerView
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx
    import mlx.nn as nn

_NAME = "scaled_dot_product_attention"
_original: Callable[..., mx.array] = base.scaled_dot_product_attention


def dispatch_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attend; shapes as ``mlx-lm``'s function: queries ``[B, Hq, L, D]``, keys and values ``[B, Hkv, T, D]``.

    Raises:
        EngineError: a view's keys or values were altered between the cache and the attention, so that the view
            cannot stand in for them.

    """
    if not isinstance(cache, LayerView):
        return _original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    if not cache.owns(keys, values):
        raise EngineError("this family alters keys or values after the cache returned them; step it row by row")
    return cache.attend(queries, scale, mask, sinks)


def install_dispatch(model: nn.Module) -> None:
    """Replace the attention function by name in every module that defines a part of ``model``; idempotent."""
    names = {type(part).__module__ for part in model.modules()}
    names.update(name for name in sys.modules if name.startswith("mlx_lm.models."))
    for name in names - {base.__name__}:
        module = sys.modules.get(name)
        if getattr(module, _NAME, None) is _original:
            setattr(module, _NAME, dispatch_attention)
