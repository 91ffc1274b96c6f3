"""The batch-native engine that both front ends can share: open, prefill, step, close over one KV storage.

It knows nothing of commands, tables or files. Names are imported when they are first used, so that the parts
that compute no tensors can be imported without MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxcel_engine.engine.engine import Engine
    from mlxcel_engine.engine.finish import FinishReason, StopRules, finish_step
    from mlxcel_engine.engine.plan import DEFAULT_CHUNK, Piece, PrefillPlan
    from mlxcel_engine.engine.sampling import (
        GREEDY,
        BreakerResolver,
        ResolvedSampling,
        RowSampler,
        SamplingConfig,
        as_mlx_lm,
        greedy,
        resolve_sampling,
        sample_rows,
    )
    from mlxcel_engine.engine.single import GeneratedToken, generate
    from mlxcel_engine.engine.types import (
        ClosedSequence,
        PendingStep,
        PrefillOutcome,
        RowOutput,
        SequenceId,
        SequenceSpec,
        StepBatch,
        StepOutput,
    )

__all__ = [
    "DEFAULT_CHUNK",
    "GREEDY",
    "BreakerResolver",
    "ClosedSequence",
    "Engine",
    "FinishReason",
    "GeneratedToken",
    "PendingStep",
    "Piece",
    "PrefillOutcome",
    "PrefillPlan",
    "ResolvedSampling",
    "RowOutput",
    "RowSampler",
    "SamplingConfig",
    "SequenceId",
    "SequenceSpec",
    "StepBatch",
    "StepOutput",
    "StopRules",
    "as_mlx_lm",
    "finish_step",
    "generate",
    "greedy",
    "resolve_sampling",
    "sample_rows",
]

_MODULES = {
    "engine": ("Engine",),
    "finish": (
        "FinishReason",
        "StopRules",
        "finish_step",
    ),
    "plan": (
        "DEFAULT_CHUNK",
        "Piece",
        "PrefillPlan",
    ),
    "sampling": (
        "GREEDY",
        "BreakerResolver",
        "ResolvedSampling",
        "RowSampler",
        "SamplingConfig",
        "as_mlx_lm",
        "greedy",
        "resolve_sampling",
        "sample_rows",
    ),
    "single": (
        "GeneratedToken",
        "generate",
    ),
    "types": (
        "ClosedSequence",
        "PendingStep",
        "PrefillOutcome",
        "RowOutput",
        "SequenceId",
        "SequenceSpec",
        "StepBatch",
        "StepOutput",
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
