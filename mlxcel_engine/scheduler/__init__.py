"""The scheduler: many requests on one engine, in a thread of its own; what a server runs below its HTTP layer.

Names are imported when they are first used, so that what computes no tensors can be imported without MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxcel_engine.scheduler.config import SchedulerConfig
    from mlxcel_engine.scheduler.errors import QueueFull, RequestFailed, SchedulerClosed
    from mlxcel_engine.scheduler.handle import RequestHandle
    from mlxcel_engine.scheduler.metrics import SchedulerMetrics
    from mlxcel_engine.scheduler.request import Request, RequestResult, Timings, TokenEvent
    from mlxcel_engine.scheduler.scheduler import BatchScheduler

__all__ = [
    "BatchScheduler",
    "QueueFull",
    "Request",
    "RequestFailed",
    "RequestHandle",
    "RequestResult",
    "SchedulerClosed",
    "SchedulerConfig",
    "SchedulerMetrics",
    "Timings",
    "TokenEvent",
]

_MODULES = {
    "config": ("SchedulerConfig",),
    "errors": ("QueueFull", "RequestFailed", "SchedulerClosed"),
    "handle": ("RequestHandle",),
    "metrics": ("SchedulerMetrics",),
    "request": ("Request", "RequestResult", "Timings", "TokenEvent"),
    "scheduler": ("BatchScheduler",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
