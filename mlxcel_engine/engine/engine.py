"""The batch-native engine: open, prefill, step, close. A single sequence is a batch of one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.engine.attention import install_dispatch
from mlxcel_engine.engine.families import family_support
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.own import OwnCaches
from mlxcel_engine.engine.plan import Piece, PrefillPlan
from mlxcel_engine.engine.sampling import greedy
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
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.nn as nn

    from mlxcel_engine.engine.kv.store import KvCounters, KvForward, KvStore

_CLEAR_EVERY = 256  # steps between returning MLX's cached buffers, as `mlx-lm`'s loops do


@dataclass
class _Sequence:
    """One row's whole state; ``next_token`` uint32 ``[1]`` is what its next step feeds, maybe not computed yet."""

    id: SequenceId
    spec: SequenceSpec
    plan: PrefillPlan
    next_token: mx.array
    forwarded: int = 0


class Engine:
    """Runs any ``mlx-lm`` text model for any number of sequences.

    Not thread-safe: all calls come from the thread whose MLX stream does the work. Building one replaces the
    attention function in the model's modules (:func:`install_dispatch`), which changes nothing for others. A call
    that raises leaves every sequence as it was, except as :class:`OwnCaches` says.
    """

    def __init__(self, model: nn.Module) -> None:
        install_dispatch(model)
        self._model: Callable[..., mx.array] = model
        self.support = family_support(model)
        self._kv: KvStore = DenseKv(self.support.layers) if self.support.batched else OwnCaches(model)
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._ids = count()
        self._steps = 0

    @property
    def storage(self) -> str:
        """What holds the KV: ``dense``, or ``mlx-lm caches`` for a family that is stepped row by row."""
        return self._kv.name

    @property
    def counters(self) -> KvCounters:
        """What the storage was seen to do."""
        return self._kv.counters

    def open(self, spec: SequenceSpec) -> SequenceId:
        """Register a sequence and make room for it; nothing is forwarded yet."""
        sequence = SequenceId(next(self._ids))
        self._kv.create(sequence, len(spec.prompt), spec.reserve)
        plan = PrefillPlan(len(spec.prompt), spec.chunk)
        self._sequences[sequence] = _Sequence(sequence, spec, plan, mx.array(spec.prompt[-1:], dtype=mx.uint32))
        return sequence

    def plan(self, sequence: SequenceId) -> PrefillPlan:
        """Return how the prompt of ``sequence`` is to be prefilled; its pieces go to :meth:`prefill` in order."""
        return self._sequence(sequence).plan

    def prefill(self, sequence: SequenceId, piece: Piece) -> PrefillOutcome:
        """Forward the next ``piece`` of the plan and wait for its keys and values.

        Raises:
            EngineError: an unknown sequence, or a piece that is not the plan's next one.

        """
        state = self._sequence(sequence)
        if piece not in state.plan.pieces or piece.start != state.forwarded:
            raise EngineError(f"sequence {sequence}: piece {piece} is not next in {state.plan} after {state.forwarded}")
        _, forward = self._forward([state], mx.array([state.spec.prompt[piece.start : piece.stop]], dtype=mx.uint32))
        forward.commit()
        state.forwarded = piece.stop
        mx.eval(self._kv.arrays(sequence))
        mx.clear_cache()
        return PrefillOutcome(piece.start, piece.stop)

    def submit(self, batch: StepBatch) -> PendingStep:
        """Queue one decode step of every row without waiting, and make its tokens the rows' next inputs.

        Raises:
            EngineError: an unknown sequence, one whose prompt is not prefilled, or a sampler that returns no token
                a row.

        """
        rows = [self._ready(sequence) for sequence in batch.rows]
        groups = [rows] if self._kv.batched else [[row] for row in rows]
        results = [self._forward(group, _join([row.next_token for row in group])[:, None]) for group in groups]
        logits = _join([logits[:, -1, :] for logits, _ in results])
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        tokens = _sample(rows, logprobs)
        for _, forward in results:
            forward.commit()
        for index, row in enumerate(rows):
            row.next_token = tokens[index : index + 1] if len(rows) > 1 else tokens
            row.forwarded += 1
        mx.async_eval(tokens, logprobs)
        self._steps += 1
        if self._steps % _CLEAR_EVERY == 0:
            mx.clear_cache()
        return PendingStep(batch, tokens, logprobs)

    def collect(self, pending: PendingStep) -> StepOutput:
        """Wait for a submitted step and read its tokens."""
        tokens: Any = pending.tokens.tolist()
        outputs = (
            RowOutput(sequence, token, pending.logprobs[row])
            for row, (sequence, token) in enumerate(zip(pending.batch.rows, tokens, strict=True))
        )
        return StepOutput(tuple(outputs))

    def step(self, batch: StepBatch) -> StepOutput:
        """One decode step of every row: :meth:`submit` and :meth:`collect` without lookahead."""
        return self.collect(self.submit(batch))

    def close(self, sequence: SequenceId) -> ClosedSequence:
        """Forget ``sequence`` and free its storage; a step of it that is still queued is of no consequence."""
        state = self._sequence(sequence)
        self._kv.drop(sequence)
        del self._sequences[sequence]
        return ClosedSequence(sequence, state.plan, state.forwarded)

    def _sequence(self, sequence: SequenceId) -> _Sequence:
        try:
            return self._sequences[sequence]
        except KeyError:
            raise EngineError(f"sequence {sequence} is not open") from None

    def _ready(self, sequence: SequenceId) -> _Sequence:
        state = self._sequence(sequence)
        if state.forwarded < state.plan.tail.start:
            done = f"{state.forwarded} of {state.plan.tail.start}"
            raise EngineError(f"sequence {sequence}: {done} prompt tokens prefilled; prefill the rest before a step")
        return state

    def _forward(self, rows: list[_Sequence], inputs: mx.array) -> tuple[mx.array, KvForward]:
        """Run the model on ``inputs`` ``[B, L]``; logits ``[B, L, V]``, and what commits the forward."""
        forward = self._kv.forward([row.id for row in rows], inputs.shape[1])
        return self._model(inputs, cache=forward.caches), forward


def _join(arrays: list[mx.array]) -> mx.array:
    """Concatenate along the rows; a single array as it is."""
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)


def _sample(rows: list[_Sequence], logprobs: mx.array) -> mx.array:
    """Draw a token a row, uint32 ``[B]``: one call for all rows where each is greedy, else one call a row.

    Raises:
        EngineError: a sampler returned another shape.

    """
    if all(row.spec.sampler is greedy for row in rows):
        return greedy(logprobs)
    tokens = [row.spec.sampler(logprobs[index : index + 1]) for index, row in enumerate(rows)]
    for row, token in zip(rows, tokens, strict=True):
        if token.shape != (1,):
            raise EngineError(f"sequence {row.id}: its sampler returned shape {token.shape}, (1,) expected")
    return _join(tokens)
