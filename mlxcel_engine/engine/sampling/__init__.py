"""The sampling chain of one row, on the device: logits and token history in, token out, no host read between.

``config`` says what is wanted, ``resolved`` makes seed and breakers concrete, ``row`` holds a request's state,
``batch`` samples the rows of a step together, ``adapters`` serve ``mlx-lm``'s loops with the same computations.
Names are imported when they are first used: the configuration needs no MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.adapters import as_mlx_lm
    from mlxcel_engine.engine.sampling.batch import greedy, sample_rows
    from mlxcel_engine.engine.sampling.breakers import BreakerResolver, Breakers
    from mlxcel_engine.engine.sampling.config import SamplingConfig
    from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling, resolve_sampling
    from mlxcel_engine.engine.sampling.row import RowSampler, row_ok

__all__ = [
    "GREEDY",
    "BreakerResolver",
    "Breakers",
    "ResolvedSampling",
    "RowSampler",
    "SamplingConfig",
    "as_mlx_lm",
    "greedy",
    "resolve_sampling",
    "row_ok",
    "sample_rows",
]

_MODULES = {
    "adapters": ("as_mlx_lm",),
    "batch": ("greedy", "sample_rows"),
    "breakers": ("BreakerResolver", "Breakers"),
    "config": ("SamplingConfig",),
    "resolved": ("GREEDY", "ResolvedSampling", "resolve_sampling"),
    "row": ("RowSampler", "row_ok"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
