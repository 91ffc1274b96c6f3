"""The batch-native engine that both front ends can share: open, prefill, step, close over one KV storage.

It knows nothing of commands, tables or files.
"""

from mlxcel_engine.engine.engine import Engine
from mlxcel_engine.engine.finish import FinishReason, StopRules, finish_step
from mlxcel_engine.engine.generate import GeneratedToken, generate
from mlxcel_engine.engine.plan import DEFAULT_CHUNK, Piece, PrefillPlan
from mlxcel_engine.engine.sampling import RowSampler, greedy
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
    "ClosedSequence",
    "Engine",
    "FinishReason",
    "GeneratedToken",
    "PendingStep",
    "Piece",
    "PrefillOutcome",
    "PrefillPlan",
    "RowOutput",
    "RowSampler",
    "SequenceId",
    "SequenceSpec",
    "StepBatch",
    "StepOutput",
    "StopRules",
    "finish_step",
    "generate",
    "greedy",
]
