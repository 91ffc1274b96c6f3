"""The open sequences of an engine: they come in by a prompt or from outside, go out, and come back."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.kv.detached import CopiedKv
from mlxcel_engine.engine.plan import PrefillPlan
from mlxcel_engine.engine.sampling.row import UNWIND_LIMIT, RowSampler
from mlxcel_engine.engine.sequence import Sequence
from mlxcel_engine.engine.types import DetachedSequence, SequenceId, SequenceSpec
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from mlxcel_engine.engine.kv.store import DetachedKv, KvStore
    from mlxcel_engine.engine.shapes import FixedShapes


class OpenSequences:
    """The engine's sequences by id; each has its place in the KV storage from when it comes in until it goes out.

    A call that raises has changed nothing. An id is never given twice.
    """

    def __init__(self, kv: KvStore, shapes: FixedShapes | None) -> None:
        """Keep the sequences' KV in ``kv``; ``shapes`` are those of the invariant mode."""
        self.states: dict[SequenceId, Sequence] = {}
        self._kv = kv
        self._shapes = shapes
        self._ids = count()

    def get(self, sequence: SequenceId) -> Sequence:
        """Return the state of ``sequence``.

        Raises:
            EngineError: it is not open.

        """
        try:
            return self.states[sequence]
        except KeyError:
            raise EngineError(f"sequence {sequence} is not open") from None

    def ready(self, sequence: SequenceId) -> Sequence:
        """Return the state of ``sequence``, which is about to be stepped.

        Raises:
            EngineError: it is not open, or its prompt is not prefilled.

        """
        state = self.get(sequence)
        if state.forwarded < state.plan.tail.start:
            done = f"{state.forwarded} of {state.plan.tail.start}"
            raise EngineError(f"sequence {sequence}: {done} prompt tokens prefilled; prefill the rest before a step")
        return state

    def open(self, spec: SequenceSpec, prefix: DetachedKv | None) -> SequenceId:
        """See :meth:`Engine.open`."""
        adopted = prefix.tokens if prefix is not None else 0
        plan = self.make_plan(spec, adopted)
        sampler = RowSampler(spec.sampling, spec.prompt)
        last = mx.array(spec.prompt[-1:], dtype=mx.uint32) if plan.has_tail else None
        sequence = self._next_id()
        self._kv.create(sequence, len(spec.prompt), spec.reserve, prefix)
        self.states[sequence] = Sequence(sequence, spec, plan, sampler, last, adopted, _no_steps())
        return sequence

    def make_plan(self, spec: SequenceSpec, adopted: int) -> PrefillPlan:
        """How the prompt of ``spec`` is prefilled behind ``adopted`` tokens of it.

        Raises:
            EngineError: as :class:`PrefillPlan` and :meth:`FixedShapes.plan`.

        """
        if self._shapes is None:
            return PrefillPlan(len(spec.prompt), spec.chunk, adopted, spec.boundary)
        return self._shapes.plan(len(spec.prompt), adopted, spec.boundary)

    def close(self, sequence: SequenceId) -> Sequence:
        """Forget ``sequence``, free its storage and return what its state was."""
        state = self.get(sequence)
        self._kv.drop(sequence)
        del self.states[sequence]
        return state

    def detach(self, sequence: SequenceId, *, keep_kv: bool) -> DetachedSequence:
        """See :meth:`Engine.detach`."""
        if not keep_kv:
            state = self.close(sequence)
            return DetachedSequence(state, CopiedKv([], state.forwarded, released=True))
        state = self.get(sequence)
        kept = self._kv.detach(sequence)
        del self.states[sequence]
        return DetachedSequence(state, kept)

    def resume(self, detached: DetachedSequence) -> SequenceId:
        """See :meth:`Engine.resume`."""
        state = _outside(detached)
        sequence = self._next_id()
        self._kv.create(sequence, max(state.plan.length, state.forwarded), state.spec.reserve, detached.kv)
        return self._back(detached, replace(state, id=sequence))

    def recompute(self, detached: DetachedSequence, tokens: tuple[int, ...]) -> SequenceId:
        """See :meth:`Engine.recompute`."""
        state = _outside(detached)
        needed = max(state.forwarded, state.plan.tail.start)
        if len(tokens) != needed:
            raise EngineError(f"{len(tokens)} tokens given to recompute a sequence; {needed} precede its next step's")
        sequence = self._next_id()
        plan = PrefillPlan(len(tokens) + 1, state.spec.chunk, boundary=state.plan.boundary)
        spec = replace(state.spec, prompt=(*tokens, 0))  # the tail's place; its token is `next_token`
        self._kv.create(sequence, plan.length, spec.reserve)
        return self._back(detached, replace(state, id=sequence, spec=spec, plan=plan, forwarded=0, fed=_no_steps()))

    def _back(self, detached: DetachedSequence, state: Sequence) -> SequenceId:
        """Let ``detached``, which has its room now, be the open sequence of ``state``."""
        detached.kv.release()
        detached.state = None
        self.states[state.id] = state
        return state.id

    def _next_id(self) -> SequenceId:
        return SequenceId(next(self._ids))


def _no_steps() -> deque[mx.array | None]:
    return deque(maxlen=UNWIND_LIMIT)


def _outside(detached: DetachedSequence) -> Sequence:
    """Return the state of a sequence that is outside; :attr:`DetachedSequence.state` is None once it came back."""
    if not isinstance(detached.state, Sequence):
        raise EngineError("this sequence came back already; a detached sequence is brought back once")
    return detached.state
