"""The batch-native engine: open, prefill, step, close. A single sequence is a batch of one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from mlxcel_engine.engine.attention import install_dispatch
from mlxcel_engine.engine.families import family_support
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.plan import Piece, PrefillPlan
from mlxcel_engine.engine.sampling.batch import sample_rows
from mlxcel_engine.engine.sampling.row import RowSampler, row_ok
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
from mlxcel_engine.errors import EngineError, RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.nn as nn

    from mlxcel_engine.engine.kv.store import KvCounters, KvStore

_CLEAR_EVERY = 256  # steps between returning MLX's cached buffers, as `mlx-lm`'s loops do


@dataclass
class _Sequence:
    """One row's whole state; ``pending`` uint32 ``[1]`` is the token that its next step feeds."""

    id: SequenceId
    spec: SequenceSpec
    plan: PrefillPlan
    sampler: RowSampler
    pending: mx.array
    forwarded: int = 0
    own_caches: list[Any] | None = None

    @property
    def prefilled(self) -> bool:
        return self.forwarded >= self.plan.tail.start


class Engine:
    """Runs any ``mlx-lm`` text model for any number of sequences; see docs/adr/0002 for device and dtype.

    Not thread-safe: all calls come from the thread whose MLX stream does the work. Building one replaces the
    attention function in the model's modules (:func:`install_dispatch`), which changes nothing for others.
    """

    def __init__(self, model: nn.Module) -> None:
        install_dispatch(model)
        self._model: Callable[..., mx.array] = model
        self._module = model
        self.support = family_support(model)
        self._kv: KvStore | None = DenseKv(self.support.layers) if self.support.batched else None
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._ids = count()
        self._steps = 0

    @property
    def storage(self) -> str:
        """What holds the KV: ``dense``, or ``mlx-lm caches`` for a family that is stepped row by row."""
        return self._kv.name if self._kv else "mlx-lm caches"

    @property
    def counters(self) -> KvCounters | None:
        """The storage's counters; None where ``mlx-lm``'s caches hold the KV."""
        return self._kv.counters if self._kv else None

    def open(self, spec: SequenceSpec) -> SequenceId:
        """Register a sequence and make room for it; nothing is forwarded yet."""
        sequence = SequenceId(next(self._ids))
        plan = PrefillPlan(len(spec.prompt), spec.chunk)
        sampler = RowSampler(spec.sampling, spec.prompt)
        state = _Sequence(sequence, spec, plan, sampler, mx.array(spec.prompt[-1:], dtype=mx.uint32))
        if self._kv:
            self._kv.create(sequence, len(spec.prompt) + spec.reserve)
        else:
            state.own_caches = make_prompt_cache(self._module)
        self._sequences[sequence] = state
        return sequence

    def plan(self, sequence: SequenceId) -> PrefillPlan:
        """Return how the prompt of ``sequence`` is to be prefilled; its pieces go to :meth:`prefill` in order."""
        return self._sequence(sequence).plan

    def prefill(self, sequence: SequenceId, piece: Piece) -> PrefillOutcome:
        """Forward ``piece`` of the prompt and wait for its keys and values.

        Raises:
            EngineError: an unknown sequence, or a piece that does not follow what was forwarded.

        """
        state = self._sequence(sequence)
        if not state.forwarded == piece.start < piece.stop <= state.plan.tail.start:
            raise EngineError(f"sequence {sequence}: piece {piece} does not follow {state.forwarded} tokens forwarded")
        self._forward([state], mx.array([state.spec.prompt[piece.start : piece.stop]], dtype=mx.uint32))
        if self._kv:
            mx.eval(self._kv.arrays(sequence))
        else:
            mx.eval([cache.state for cache in state.own_caches or ()])
        mx.clear_cache()
        return PrefillOutcome(piece.start, piece.stop, state.plan.length - piece.stop)

    def submit(self, batch: StepBatch) -> PendingStep:
        """Queue one decode step of every row without waiting, and make its tokens the rows' next inputs.

        Raises:
            EngineError: an unknown sequence, or one whose prompt is not prefilled.

        """
        rows = [self._sequence(sequence) for sequence in batch.rows]
        for row in rows:
            if not row.prefilled:
                done = f"{row.forwarded} of {row.plan.tail.start}"
                raise EngineError(f"sequence {row.id}: {done} prompt tokens prefilled; prefill the rest before a step")
        logits = self._decode(rows)
        tokens, logprobs = sample_rows([row.sampler for row in rows], logits)
        mx.async_eval(tokens, logprobs)
        for index, row in enumerate(rows):
            row.pending = tokens[index : index + 1] if len(rows) > 1 else tokens
        self._steps += 1
        if self._steps % _CLEAR_EVERY == 0:
            mx.clear_cache()
        return PendingStep(batch, tokens, logprobs)

    def collect(self, pending: PendingStep) -> StepOutput:
        """Wait for a submitted step and read its tokens."""
        tokens: Any = pending.tokens.tolist()
        outputs = (
            _row_output(sequence, token, pending.logprobs[row])
            for row, (sequence, token) in enumerate(zip(pending.batch.rows, tokens, strict=True))
        )
        return StepOutput(tuple(outputs))

    def step(self, batch: StepBatch) -> StepOutput:
        """One decode step of every row: :meth:`submit` and :meth:`collect` without lookahead."""
        return self.collect(self.submit(batch))

    def close(self, sequence: SequenceId) -> ClosedSequence:
        """Forget ``sequence`` and free its storage; a step of it that is still queued is of no consequence."""
        state = self._sequence(sequence)
        if self._kv:
            self._kv.drop(sequence)
        del self._sequences[sequence]
        return ClosedSequence(sequence, state.plan, state.forwarded, self.storage)

    def _sequence(self, sequence: SequenceId) -> _Sequence:
        try:
            return self._sequences[sequence]
        except KeyError:
            raise EngineError(f"sequence {sequence} is not open") from None

    def _decode(self, rows: list[_Sequence]) -> mx.array:
        """Feed every row its pending token; logits ``[B, V]`` of the model's dtype."""
        if self._kv or len(rows) == 1:
            inputs = rows[0].pending if len(rows) == 1 else mx.concatenate([row.pending for row in rows])
            return self._forward(rows, inputs[:, None])[:, -1, :]
        return mx.concatenate([self._forward([row], row.pending[:, None])[:, -1, :] for row in rows])

    def _forward(self, rows: list[_Sequence], inputs: mx.array) -> mx.array:
        """Run the model on ``inputs`` ``[B, L]`` and count the tokens; logits ``[B, L, V]``."""
        if self._kv:
            view = self._kv.view([row.id for row in rows])
            logits = self._model(inputs, cache=view.layers)
            view.commit(inputs.shape[1])
        else:
            logits = self._model(inputs, cache=rows[0].own_caches)
        for row in rows:
            row.forwarded += inputs.shape[1]
        return logits


def _row_output(sequence: SequenceId, token: int, logprobs: mx.array) -> RowOutput:
    error = None if row_ok(token, logprobs) else RunError(f"sequence {sequence}: every token is masked or NaN")
    return RowOutput(sequence, token, logprobs, error)
