"""The engine's vocabulary: what goes in, what comes out. Shapes: ``V`` is the vocabulary size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling
from mlxcel_engine.errors import EngineError, RunError

if TYPE_CHECKING:
    import mlx.core as mx

    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.engine.plan import PrefillPlan

SequenceId = NewType("SequenceId", int)


@dataclass(frozen=True)
class SequenceSpec:
    """A sequence to open: prompt ids (at least one; they become a tuple), sampling, and how its prompt is prefilled.

    ``reserve`` new tokens are a hint that avoids growing the KV storage; a sequence may run past it. At ``boundary``
    a piece of the prefill ends (:class:`PrefillPlan`).
    """

    prompt: tuple[int, ...]
    sampling: ResolvedSampling = GREEDY
    chunk: int = DEFAULT_CHUNK
    reserve: int = 256
    boundary: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))  # a list, as a tokenizer returns it, could change
        if not self.prompt:
            raise EngineError("a sequence needs at least one prompt token; got none")
        for token in self.prompt:
            if not isinstance(token, int) or token < 0:
                raise EngineError(f"prompt id {token!r} is not a whole number of 0 or more")


@dataclass(frozen=True)
class PrefillOutcome:
    """``[start, stop)`` of the prompt was forwarded."""

    start: int
    stop: int


@dataclass(frozen=True)
class StepBatch:
    """The rows of one decode step, each at its own position; no sequence twice."""

    rows: tuple[SequenceId, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(set(self.rows)) != len(self.rows):
            raise EngineError(f"a step needs at least one row and no sequence twice; got {self.rows}")


@dataclass(frozen=True)
class PendingStep:
    """A submitted step that has not been read: ``tokens`` uint32 ``[B]``, ``logprobs`` float ``[B, V]``, lazy.

    ``rows`` are those that went through the model; ``errors`` the others.
    """

    rows: tuple[SequenceId, ...]
    tokens: mx.array
    logprobs: mx.array
    errors: tuple[RowError, ...] = ()


@dataclass(frozen=True)
class RowOutput:
    """One row's result: the sampled token and the logprobs ``[V]`` (nats, the model's dtype) it was sampled from."""

    id: SequenceId
    token: int
    logprobs: mx.array


@dataclass(frozen=True)
class RowError:
    """Why one row has no token: its own forward failed, or every token was masked or NaN. Close the sequence."""

    id: SequenceId
    error: RunError


@dataclass(frozen=True)
class StepOutput:
    """The rows of a step in the order of its batch, and the rows that failed, which did not touch them."""

    rows: tuple[RowOutput, ...]
    errors: tuple[RowError, ...] = ()


@dataclass(frozen=True)
class ClosedSequence:
    """What a sequence did: its plan, and the tokens that were forwarded through the model, lookahead included."""

    id: SequenceId
    plan: PrefillPlan
    forwarded: int


@dataclass
class DetachedSequence:
    """A whole sequence outside the engine, to come back once as if it had never stopped; ``kv`` holds its KV.

    ``state`` is the engine's.
    """

    state: object
    kv: DetachedKv

    @property
    def nbytes(self) -> int:
        """Bytes of its keys and values."""
        return self.kv.nbytes
