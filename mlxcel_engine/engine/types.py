"""The engine's vocabulary: what goes in, what comes out. Shapes: ``V`` is the vocabulary size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling
from mlxcel_engine.errors import EngineError, RunError

if TYPE_CHECKING:
    import mlx.core as mx

    from mlxcel_engine.engine.plan import PrefillPlan

SequenceId = NewType("SequenceId", int)


@dataclass(frozen=True)
class SequenceSpec:
    """A sequence to open: prompt ids (at least one), sampling, and how many new tokens to reserve room for.

    ``reserve`` is a hint that avoids growing the KV storage; a sequence may run past it.
    """

    prompt: tuple[int, ...]
    sampling: ResolvedSampling = GREEDY
    chunk: int = DEFAULT_CHUNK
    reserve: int = 256

    def __post_init__(self) -> None:
        if not self.prompt:
            raise EngineError("a sequence needs at least one prompt token; got none")


@dataclass(frozen=True)
class PrefillOutcome:
    """``[start, stop)`` of the prompt was forwarded; ``remaining`` tokens are left, the last one is a step's."""

    start: int
    stop: int
    remaining: int


@dataclass(frozen=True)
class StepBatch:
    """The rows of one decode step, each at its own position; no sequence twice."""

    rows: tuple[SequenceId, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(set(self.rows)) != len(self.rows):
            raise EngineError(f"a step needs at least one row and no sequence twice; got {self.rows}")


@dataclass(frozen=True)
class PendingStep:
    """A submitted step that has not been read: ``tokens`` uint32 ``[B]``, ``logprobs`` float ``[B, V]``, lazy."""

    batch: StepBatch
    tokens: mx.array
    logprobs: mx.array


@dataclass(frozen=True)
class RowOutput:
    """One row's result: the sampled token and the logprobs ``[V]`` (nats, the model's dtype) it was sampled from.

    ``error`` says that no token could be sampled, because every one is masked or a logit is NaN: ``token`` is then 0
    and means nothing. Other rows of the step are not touched by it.
    """

    id: SequenceId
    token: int
    logprobs: mx.array
    error: RunError | None = None


@dataclass(frozen=True)
class StepOutput:
    """The rows of a step in the order of its batch."""

    rows: tuple[RowOutput, ...]


@dataclass(frozen=True)
class ClosedSequence:
    """What a sequence did: its plan, the tokens forwarded through the model, and the storage that held its KV."""

    id: SequenceId
    plan: PrefillPlan
    forwarded: int
    storage: str
