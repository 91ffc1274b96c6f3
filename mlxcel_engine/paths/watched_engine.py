"""An engine that says which of its forwards are those of one sequence, for the evidence of the scheduler's paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.engine import Engine, EngineConfig

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

    from mlxcel_engine.engine import DetachedSequence, PendingStep, SequenceId, SequenceSpec, StepBatch
    from mlxcel_engine.engine.kv.store import DetachedKv, KvForward
    from mlxcel_engine.engine.sequence import Sequence
    from mlxcel_engine.paths.forward_log import ForwardLog


class WatchedEngine(Engine):
    """Computes what :class:`Engine` does; before each forward it tells the log whether, and as which row, it counts."""

    def __init__(self, model: nn.Module, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._log: ForwardLog | None = None
        self._own: SequenceId | None = None
        self._outside: DetachedSequence | None = None

    def watch(self, log: ForwardLog) -> None:
        """Let the next sequence that is opened be the one of ``log``."""
        self._log, self._own = log, None

    def open(self, spec: SequenceSpec, prefix: DetachedKv | None = None) -> SequenceId:
        """See :meth:`Engine.open`."""
        sequence = super().open(spec, prefix)
        if self._log is not None and self._own is None:
            self._own = sequence
            self._log.adopted = prefix.tokens if prefix is not None else 0
        return sequence

    def detach(self, sequence: SequenceId, *, keep_kv: bool = True) -> DetachedSequence:
        """See :meth:`Engine.detach`."""
        detached = super().detach(sequence, keep_kv=keep_kv)
        if sequence == self._own:
            self._outside = detached
        return detached

    def resume(self, detached: DetachedSequence) -> SequenceId:
        """See :meth:`Engine.resume`."""
        sequence = super().resume(detached)
        if detached is self._outside:
            self._own = sequence
        return sequence

    def submit(self, batch: StepBatch) -> PendingStep:
        """See :meth:`Engine.submit`."""
        if self._log is not None:
            self._log.together = len(batch.rows)
        return super().submit(batch)

    def _forward(self, rows: list[Sequence], inputs: mx.array, width: int | None) -> tuple[mx.array, KvForward]:
        if self._log is not None:
            ids = [row.id for row in rows]
            place = ids.index(self._own) if self._own in ids else -1
            self._log.row, self._log.ahead = max(place, 0), min(place, 0)
        return super()._forward(rows, inputs, width)
