"""An engine that says which of its forwards are those of one sequence, for the evidence of the scheduler's paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.engine import Engine, EngineConfig

if TYPE_CHECKING:
    import mlx.nn as nn

    from mlxcel_engine.engine import PendingStep, Piece, PrefillOutcome, SequenceId, SequenceSpec, StepBatch
    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.paths.forward_log import ForwardLog


class WatchedEngine(Engine):
    """Computes what :class:`Engine` does; before each forward it tells the log whether, and as which row, it counts."""

    def __init__(self, model: nn.Module, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._log: ForwardLog | None = None
        self._own: SequenceId | None = None

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

    def prefill(self, sequence: SequenceId, piece: Piece) -> PrefillOutcome:
        """See :meth:`Engine.prefill`."""
        if self._log is not None:
            self._log.ahead = 0 if sequence == self._own else -1
        return super().prefill(sequence, piece)

    def submit(self, batch: StepBatch) -> PendingStep:
        """See :meth:`Engine.submit`."""
        if self._log is not None:
            place = batch.rows.index(self._own) if self._own in batch.rows else -1
            self._log.together = len(batch.rows)
            if self.support.batched:
                self._log.row, self._log.ahead = max(place, 0), min(place, 0)
            else:  # a forward for each row, in their order
                self._log.ahead = place
        return super().submit(batch)
