"""The engine's storage as the tick policy sees it: rows come in, go out, come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS, blocks_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.engine import DetachedSequence, Engine, Piece, SequenceId
    from mlxcel_engine.scheduler.config import SchedulerConfig
    from mlxcel_engine.scheduler.prompt_cache import PromptCache
    from mlxcel_engine.scheduler.ticket import Ticket


def kv_blocks(engine: Engine, config: SchedulerConfig) -> int | None:
    """How many blocks of KV there are in all: fixed pools, or the bound of ``config``, or no bound."""
    fixed = engine.kv_usage.total
    if fixed is not None or config.kv_tokens is None:
        return fixed
    return config.kv_tokens // BLOCK_TOKENS


class EngineRoom:
    """Implements :class:`~mlxcel_engine.scheduler.policy.Room`; ``rows`` are the tickets in the engine."""

    def __init__(
        self,
        engine: Engine,
        config: SchedulerConfig,
        cache: PromptCache,
        admitted: Callable[[], None],
        failed: Callable[[Ticket, Exception], None],
    ) -> None:
        """``admitted`` is told of every ticket that came in for the first time; ``failed`` ends one that could not."""
        self.rows: dict[SequenceId, Ticket] = {}
        self.detached_bytes = 0
        self.recomputed = 0
        self.total = kv_blocks(engine, config)
        self._engine = engine
        self._limit = config.detached_bytes
        self._cache = cache
        self._admitted = admitted
        self._failed = failed

    def free(self) -> int | None:
        """See :meth:`Room.free`."""
        return None if self.total is None else self.total - self._engine.kv_usage.used

    def reclaim(self) -> bool:
        """See :meth:`Room.reclaim`."""
        return self._cache.reclaim()

    def cost(self, seat: Ticket) -> int:
        """See :meth:`Room.cost`."""
        needed = blocks_for(max(seat.held, seat.target) + 1)
        if seat.detached is None and seat.cached:
            needed -= self._cache.shared_blocks(seat.cache_key, seat.spec.prompt)
        return needed

    def piece(self, seat: Ticket) -> Piece:
        """The next piece of the prefill of a ticket in the engine."""
        return next(piece for piece in self._engine.plan(seat.row).pieces if piece.start == seat.held)

    def next_piece(self, seat: Ticket) -> int:
        """See :meth:`Room.next_piece`."""
        piece = self.piece(seat)
        return piece.stop - piece.start

    def enter(self, seat: Ticket) -> None:
        """See :meth:`Room.enter`."""
        try:
            sequence = self._open(seat) if seat.detached is None else self._again(seat, seat.detached)
        except Exception as error:  # a row that cannot come in ends; nobody else is touched
            self._failed(seat, error)
            return
        seat.sequence, seat.detached = sequence, None
        self.rows[sequence] = seat

    def leave(self, seat: Ticket) -> None:
        """See :meth:`Room.leave`; beyond the limit of detached bytes its KV is dropped, to be computed again.

        In the invariant mode all is kept: prefill would not give the keys that decode steps gave.
        """
        within = self.detached_bytes + self._engine.kv_bytes(seat.row) <= self._limit
        keep = within or self._engine.shapes is not None
        seat.detached = self._engine.detach(seat.row, keep_kv=keep)
        self._out(seat)
        seat.preemptions += 1
        if keep:
            self.detached_bytes += seat.detached.nbytes
            return
        self.recomputed += 1
        seat.recomputed += seat.held
        seat.target, seat.held = len(seat.fed), 0

    def vacate(self, seat: Ticket) -> None:
        """Free whatever a ticket that ends holds, wherever it is."""
        if seat.sequence is not None:
            seat.kv_bytes = self._engine.kv_bytes(seat.sequence)
            self._engine.close(seat.sequence)
            self._out(seat)
        if seat.detached is not None:
            seat.kv_bytes = seat.detached.nbytes
            self.detached_bytes -= seat.kv_bytes
            seat.detached.kv.release()
            seat.detached = None

    def _open(self, seat: Ticket) -> SequenceId:
        lease = self._cache.lease(seat.cache_key, seat.spec.prompt) if seat.cached else None
        try:
            sequence = self._engine.open(seat.spec, lease.kv if lease is not None else None)
        except BaseException:
            if lease is not None:
                lease.end()
            raise
        finally:
            if lease is not None:
                lease.opened()
        self._admitted()
        seat.admitted = time.perf_counter()
        seat.partition = str(self._engine.plan(sequence))
        if lease is not None:
            seat.lease, seat.held, seat.adopted = lease, lease.tokens, lease.tokens
        return sequence

    def _again(self, seat: Ticket, detached: DetachedSequence) -> SequenceId:
        if detached.kv.released:
            return self._engine.recompute(detached, seat.fed)
        nbytes = detached.nbytes
        sequence = self._engine.resume(detached)
        self.detached_bytes -= nbytes
        return sequence

    def _out(self, seat: Ticket) -> None:
        del self.rows[seat.row]
        seat.sequence = None
        if seat.lease is not None:
            seat.lease.end()
            seat.lease = None
