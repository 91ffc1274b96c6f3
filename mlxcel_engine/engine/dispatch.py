"""The dispatch: ``mlx-lm``'s model code attends through our view, and takes faster functions where it may.

Model modules bind functions of ``mlx-lm`` by name when they are imported, so the names are replaced in each of them;
replacing them where they are defined would change nothing. ``mx.fast.rope`` is looked up when it is called, and is
replaced there. For ``mlx-lm``'s own caches, and outside our forwards, the calls pass through unchanged, so its loops
can share the process.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models import activations, base

from mlxcel_engine.engine import powers
from mlxcel_engine.engine.kv.view import LayerView
from mlxcel_engine.engine.rotations import Rotations
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import mlx.nn as nn

_attention: Callable[..., mx.array] = base.scaled_dot_product_attention
_swiglu: Callable[[mx.array, mx.array], mx.array] = activations.swiglu
_rope: Callable[..., mx.array] = mx.fast.rope


class _ThreadState(threading.local):
    """The rotations of this thread's forward while it may use the faster functions, else None."""

    rotations: Rotations | None = None


_here = _ThreadState()


@contextmanager
def faster_functions(*, allowed: bool) -> Iterator[None]:
    """Let the model code that runs inside, in this thread, use ``powers.py`` and ``rotations.py``, if ``allowed``."""
    before = _here.rotations
    _here.rotations = Rotations() if allowed else None
    try:
        yield
    finally:
        _here.rotations = before


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
        return _attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    if not cache.owns(keys, values):
        raise EngineError("this family alters keys or values after the cache returned them; step it row by row")
    return cache.attend(queries, scale, mask, sinks)


def dispatch_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """``silu(gate) * x``, as ``mlx-lm``'s function."""
    if _here.rotations is not None and gate.dtype == x.dtype == mx.float32:
        return powers.swiglu(gate, x)
    return _swiglu(gate, x)


def dispatch_rope(
    a: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
    stream: Any = None,
) -> mx.array:
    """Rotate ``[B, H, L, D]``, as ``mx.fast.rope``, whose names these are."""
    rotations = _here.rotations
    one_token = a.ndim == 4 and a.shape[2] == 1 and a.shape[3] == dims and a.dtype == mx.float32
    if rotations is not None and one_token and not traditional and stream is None:
        right = (base is None) != (freqs is None) and dims % 2 == 0  # what MLX refuses, it is to refuse
        if right and (isinstance(offset, int) or offset.size in (1, a.shape[0])):
            return rotations.apply(a, dims, base, scale, offset, freqs)
    return _rope(a, dims, traditional=traditional, base=base, scale=scale, offset=offset, freqs=freqs, stream=stream)


def install_dispatch(model: nn.Module) -> None:
    """Replace the functions, by name in every module that defines a part of ``model``; idempotent."""
    mx.fast.rope = dispatch_rope
    names = {type(part).__module__ for part in model.modules()}
    names.update(name for name in sys.modules if name.startswith("mlx_lm.models."))
    for name in names - {base.__name__, activations.__name__}:
        module = sys.modules.get(name)
        if getattr(module, "scaled_dot_product_attention", None) is _attention:
            setattr(module, "scaled_dot_product_attention", dispatch_attention)  # noqa: B010 - mypy knows no module's
        if getattr(module, "swiglu", None) is _swiglu:
            setattr(module, "swiglu", dispatch_swiglu)  # noqa: B010
