"""The batch-native engine: open, prefill, step, close. A single sequence is a batch of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.engine.config import EngineConfig
from mlxcel_engine.engine.decoding import Decoding
from mlxcel_engine.engine.dispatch import faster_functions, install_dispatch
from mlxcel_engine.engine.families import family_support, multiplies_faster_in_pairs, multiplies_row_by_row
from mlxcel_engine.engine.kv.detached import materialized
from mlxcel_engine.engine.kv.factory import is_exact, make_store
from mlxcel_engine.engine.sampling.batch import sample_rows
from mlxcel_engine.engine.sampling.row import row_ok
from mlxcel_engine.engine.sequence import Sequence, fitting
from mlxcel_engine.engine.sequences import OpenSequences
from mlxcel_engine.engine.shapes import resolve_shapes
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
from mlxcel_engine.errors import EngineError, RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.nn as nn

    from mlxcel_engine.engine.kv.store import DetachedKv, KvCounters, KvForward, KvUsage
    from mlxcel_engine.engine.plan import Piece, PrefillPlan

_CLEAR_EVERY = 256  # steps between returning MLX's cached buffers, as `mlx-lm`'s loops do


class Engine:
    """Runs any ``mlx-lm`` text model for any number of sequences.

    Not thread-safe: all calls come from the thread whose MLX stream does the work. Building one replaces functions that
    the model calls (:func:`install_dispatch`), which changes nothing for others. A call that raises leaves every
    sequence as it was, except as :class:`OwnCaches` says.
    """

    def __init__(self, model: nn.Module, config: EngineConfig | None = None) -> None:
        """Prepare ``model``; ``shapes`` are those of the invariant mode, None without it.

        Raises:
            EngineError: paged storage for a family that cannot use it; says why.

        """
        config = config or EngineConfig()
        install_dispatch(model)
        self.model = model
        self._model: Callable[..., mx.array] = model
        self.support = family_support(model)
        self.shapes = resolve_shapes(config.invariant, mx.default_device().type.name)
        self._exact = is_exact(config)
        self._kv = make_store(model, self.support, config, exact=self._exact, alone=self.shapes is not None)
        self._open = OpenSequences(self._kv, self.shapes)
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        pads = not on_cpu or not multiplies_row_by_row(model)
        pairs = on_cpu and not self._exact and multiplies_faster_in_pairs(model)
        self._decoding = Decoding(self._forward, batched=self._kv.batched, shapes=self.shapes, pads=pads, pairs=pairs)
        self._steps = 0

    @property
    def storage(self) -> str:
        """What holds the KV: ``dense``, ``paged``, or ``mlx-lm caches`` for a family that is stepped row by row."""
        return self._kv.name

    @property
    def kv_usage(self) -> KvUsage:
        """How much room of the storage is taken."""
        return self._kv.usage()

    def kv_bytes(self, sequence: SequenceId) -> int:
        """Bytes of the keys and values of a sequence: what :meth:`detach` would keep."""
        self._open.get(sequence)
        return self._kv.nbytes(sequence)

    @property
    def open_sequences(self) -> int:
        """Sequences that are open."""
        return len(self._open.states)

    @property
    def counters(self) -> KvCounters:
        """What the storage was seen to do."""
        return self._kv.counters

    def open(self, spec: SequenceSpec, prefix: DetachedKv | None = None) -> SequenceId:
        """Register a sequence and make room for it; nothing is forwarded yet.

        ``prefix`` (from :meth:`snapshot`) is adopted: KV of the first tokens of this very prompt, at most all but one.

        Raises:
            EngineError: the prefix is of another storage; or see :meth:`check_ids` and :meth:`make_plan`.

        """
        self.check_ids((*spec.prompt, *spec.sampling.forced))
        return self._open.open(spec, prefix)

    def make_plan(self, spec: SequenceSpec) -> PrefillPlan:
        """How the prompt of ``spec`` would be prefilled from its beginning.

        In the invariant mode :attr:`shapes` has the chunk, and ``spec.chunk`` is not used.

        Raises:
            EngineError: the boundary is not in the prompt, or, in the invariant mode, no multiple of its chunk.

        """
        return self._open.make_plan(spec, adopted=0)

    def whole(self, tokens: int) -> int:
        """The largest number of tokens up to ``tokens`` that can be kept and adopted: less only in the invariant mode.

        (What a storage can keep at all, and in which portions, is another matter.)
        """
        return tokens if self.shapes is None else self.shapes.whole(tokens)

    def held(self, sequence: SequenceId) -> int:
        """Tokens of a sequence whose KV is held."""
        return self._open.get(sequence).forwarded

    def check_ids(self, ids: tuple[int, ...]) -> None:
        """Refuse ids that the model has no embedding for: MLX would read memory that is not the model's.

        Raises:
            EngineError: names the first of them.

        """
        known = self.support.tokens
        if known and ids and not 0 <= min(ids) <= max(ids) < known:
            alien = next(token for token in ids if not 0 <= token < known)
            raise EngineError(f"token id {alien} is outside the vocabulary of {known}")

    def plan(self, sequence: SequenceId) -> PrefillPlan:
        """Return how the prompt of ``sequence`` is to be prefilled; its pieces go to :meth:`prefill` in order."""
        return self._open.get(sequence).plan

    def prefill(self, sequence: SequenceId, piece: Piece) -> PrefillOutcome:
        """Forward the next ``piece`` of the plan and wait for its keys and values.

        Raises:
            EngineError: an unknown sequence, or a piece that is not the plan's next one.

        """
        state = self._open.get(sequence)
        if piece not in state.plan.pieces or piece.start != state.forwarded:
            raise EngineError(f"sequence {sequence}: piece {piece} is not next in {state.plan} after {state.forwarded}")
        inputs = mx.array([state.spec.prompt[piece.start : piece.stop]], dtype=mx.uint32)
        logits, forward = self._forward([state], inputs, None if self.shapes is None else 1)
        if piece.stop == state.plan.length:
            state.opening = materialized(logits[:, -1, :])
            mx.eval(state.opening)
        forward.commit()
        state.forwarded = piece.stop
        mx.eval(self._kv.arrays(sequence))
        mx.clear_cache()
        return PrefillOutcome(piece.start, piece.stop)

    def submit(self, batch: StepBatch) -> PendingStep:
        """Queue one decode step of every row without waiting, and make its tokens the rows' next inputs.

        Where rows are stepped one by one, a row whose forward fails is an error of its own and the others go on.

        Raises:
            EngineError: an unknown sequence, or one whose prompt is not prefilled.

        """
        ready = [self._open.ready(sequence) for sequence in batch.rows]
        rows, forwards, logits, errors = self._decoding.decode(ready)
        rows, logits = fitting(rows, logits, errors)
        tokens, logprobs = sample_rows([row.sampler for row in rows], logits, exact=self._exact)
        for forward in forwards:
            forward.commit()
        for index, row in enumerate(rows):
            row.fed.append(row.next_token)
            row.forwarded += row.next_token is not None
            row.next_token = tokens[index : index + 1] if len(rows) > 1 else tokens
        mx.async_eval(tokens, logprobs)
        self._steps += 1
        if self._steps % _CLEAR_EVERY == 0:
            mx.clear_cache()
        return PendingStep(tuple(row.id for row in rows), tokens, logprobs, tuple(errors))

    def collect(self, pending: PendingStep) -> StepOutput:
        """Wait for a submitted step and read its tokens; a row without a finite logprob is an error of its own."""
        tokens: Any = pending.tokens.tolist()
        rows, errors = [], list(pending.errors)
        for index, (sequence, token) in enumerate(zip(pending.rows, tokens, strict=True)):
            logprobs = pending.logprobs[index]
            if row_ok(token, logprobs):
                rows.append(RowOutput(sequence, token, logprobs))
            else:
                errors.append(RowError(sequence, RunError(f"sequence {sequence}: every token is masked or NaN")))
        return StepOutput(tuple(rows), tuple(errors))

    def step(self, batch: StepBatch) -> StepOutput:
        """One decode step of every row: :meth:`submit` and :meth:`collect` without lookahead."""
        return self.collect(self.submit(batch))

    def unwind(self, sequence: SequenceId, steps: int) -> None:
        """Take the last ``steps`` decode steps back: KV, history and position are as before them.

        Raises:
            EngineError: more steps than were made or are remembered, or a family that cannot go back; nothing has
                changed.

        """
        state = self._open.get(sequence)
        if not 0 <= steps <= len(state.fed):
            raise EngineError(f"sequence {sequence}: cannot take back {steps} steps; {len(state.fed)} are remembered")
        if not steps:
            return
        undone = list(state.fed)[-steps:]
        tokens = sum(fed is not None for fed in undone)
        self._kv.trim(sequence, tokens)
        state.sampler.unwind(steps)
        state.next_token = undone[0]
        state.forwarded -= tokens
        for _ in undone:
            state.fed.pop()

    def snapshot(self, sequence: SequenceId, tokens: int) -> DetachedKv:
        """Keep the KV of the first ``tokens`` tokens for :meth:`open`; the sequence goes on. Release it in the end.

        Raises:
            EngineError: fewer are held, or the family keeps no prefix of that length.

        """
        self._open.get(sequence)
        return self._kv.snapshot(sequence, tokens)

    def detach(self, sequence: SequenceId, *, keep_kv: bool = True) -> DetachedSequence:
        """Move a sequence out of the engine, its KV off the storage; :meth:`resume` brings it back.

        Without ``keep_kv`` its KV is dropped, and :meth:`recompute` brings it back.

        Raises:
            EngineError: no ``keep_kv`` in the invariant mode: prefill does not give the keys that decode steps gave.

        """
        if self.shapes is not None and not keep_kv:
            raise EngineError("the invariant mode recomputes no sequence; detach it with its KV")
        return self._open.detach(sequence, keep_kv=keep_kv)

    def resume(self, detached: DetachedSequence) -> SequenceId:
        """Bring a detached sequence back under a new id; its KV outside is released.

        Raises:
            OutOfBlocksError: there is no room; ``detached`` can be resumed later.

        """
        return self._open.resume(detached)

    def recompute(self, detached: DetachedSequence, tokens: tuple[int, ...]) -> SequenceId:
        """Bring a detached sequence back under a new id without its KV, which is released: prefill it anew.

        ``tokens`` are all that precede its next step's, prompt and generated ones. They are its plan now; after the
        last piece it goes on where it stopped, with the sampler's state as it was. Earlier steps cannot be taken back.

        Raises:
            EngineError: another number of tokens precedes its next step's; the invariant mode; or see
                :meth:`check_ids`.

        """
        if self.shapes is not None:
            raise EngineError("the invariant mode recomputes no sequence; resume it with its KV")
        self.check_ids(tokens)
        return self._open.recompute(detached, tokens)

    def close(self, sequence: SequenceId) -> ClosedSequence:
        """Forget ``sequence`` and free its storage; a step of it that is still queued is of no consequence."""
        state = self._open.close(sequence)
        return ClosedSequence(sequence, state.plan, state.forwarded)

    def _forward(self, rows: list[Sequence], inputs: mx.array, width: int | None) -> tuple[mx.array, KvForward]:
        """Run the model on ``inputs`` ``[B, L]``; logits ``[B, L, V]``, and what commits the forward.

        With a ``width`` the inputs are as many, and those behind ``rows`` are padding.
        """
        forward = self._kv.forward([row.id for row in rows], inputs.shape[1], width)
        with faster_functions(allowed=not self._exact):
            logits = self._model(inputs, cache=forward.caches)
        forward.verify()
        return logits, forward
