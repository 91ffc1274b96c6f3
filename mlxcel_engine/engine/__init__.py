"""The batch-native engine that both front ends can share: open, prefill, step, close over one KV storage.

It knows nothing of commands, tables or files. Names are imported when they are first used, so that the parts
that compute no tensors can be imported without MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxcel_engine.engine.config import EngineConfig
    from mlxcel_engine.engine.engine import Engine
    from mlxcel_engine.engine.families import PagedSupport, supports_paged_decode
    from mlxcel_engine.engine.finish import (
        Finish,
        FinishDetail,
        FinishReason,
        LoopRule,
        StopRules,
        finish_step,
        token_budget,
    )
    from mlxcel_engine.engine.plan import DEFAULT_CHUNK, Piece, PrefillPlan
    from mlxcel_engine.engine.progress import RowProgress, RowStep
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
    from mlxcel_engine.engine.shapes import FixedShapes
    from mlxcel_engine.engine.single import GeneratedToken, generate
    from mlxcel_engine.engine.text import Detokenizer, TextStream
    from mlxcel_engine.engine.types import (
        ClosedSequence,
        DetachedSequence,
        PendingStep,
        PrefillOutcome,
        RowError,
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
    "DetachedSequence",
    "Detokenizer",
    "Engine",
    "EngineConfig",
    "Finish",
    "FinishDetail",
    "FinishReason",
    "FixedShapes",
    "GeneratedToken",
    "LoopRule",
    "PagedSupport",
    "PendingStep",
    "Piece",
    "PrefillOutcome",
    "PrefillPlan",
    "ResolvedSampling",
    "RowError",
    "RowOutput",
    "RowProgress",
    "RowSampler",
    "RowStep",
    "SamplingConfig",
    "SequenceId",
    "SequenceSpec",
    "StepBatch",
    "StepOutput",
    "StopRules",
    "TextStream",
    "as_mlx_lm",
    "finish_step",
    "generate",
    "greedy",
    "resolve_sampling",
    "sample_rows",
    "supports_paged_decode",
    "token_budget",
]

_MODULES = {
    "config": ("EngineConfig",),
    "engine": ("Engine",),
    "families": (
        "PagedSupport",
        "supports_paged_decode",
    ),
    "finish": (
        "Finish",
        "FinishDetail",
        "FinishReason",
        "LoopRule",
        "StopRules",
        "finish_step",
        "token_budget",
    ),
    "plan": (
        "DEFAULT_CHUNK",
        "Piece",
        "PrefillPlan",
    ),
    "progress": (
        "RowProgress",
        "RowStep",
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
    "shapes": ("FixedShapes",),
    "single": (
        "GeneratedToken",
        "generate",
    ),
    "text": (
        "Detokenizer",
        "TextStream",
    ),
    "types": (
        "ClosedSequence",
        "DetachedSequence",
        "PendingStep",
        "PrefillOutcome",
        "RowError",
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
