"""The worker: one thread that owns the engine and its MLX stream, and runs ticks until it is told to stop."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine import StepBatch
from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS
from mlxcel_engine.engine.kv.detached import materialized
from mlxcel_engine.errors import one_line
from mlxcel_engine.scheduler.errors import RequestFailed, SchedulerClosed
from mlxcel_engine.scheduler.inbox import Inbox, Mode, Orders
from mlxcel_engine.scheduler.metrics import SchedulerMetrics
from mlxcel_engine.scheduler.policy import TickPolicy
from mlxcel_engine.scheduler.prompt_cache import PromptCache
from mlxcel_engine.scheduler.room import EngineRoom

if TYPE_CHECKING:
    from mlxcel_engine.engine import Engine, Finish, PendingStep, RowOutput, StepOutput
    from mlxcel_engine.engine.kv.store import KvCounters
    from mlxcel_engine.errors import RunError
    from mlxcel_engine.scheduler.config import SchedulerConfig
    from mlxcel_engine.scheduler.request import Ending
    from mlxcel_engine.scheduler.ticket import Ticket


class Worker:
    """All but :attr:`metrics` is for its own thread, which holds no lock while it computes.

    The step that was queued last is read only after the next one is queued (lookahead), unless it has a row's first
    token. Its rows may have ended in between: what is read of them then counts for nothing.
    """

    def __init__(self, engine: Engine, config: SchedulerConfig, inbox: Inbox) -> None:
        self.cache = PromptCache(engine, config.prompt_cache_bytes)
        self.room = EngineRoom(engine, config, self.cache, inbox.left_queue, self._not_admitted)
        self.policy: TickPolicy[Ticket] = TickPolicy(self.room, config.max_batch)
        self.metrics = SchedulerMetrics()
        self._engine = engine
        self._inbox = inbox
        self._pending: PendingStep | None = None
        self._totals = {"steps": 0, "prefill_pieces": 0, "fallbacks": 0, "generated_tokens": 0}
        self._endings = {"finished": 0, "cancelled": 0, "failed": 0}

    def run(self) -> None:
        """Serve until the end; whatever happens, no handle is left without one."""
        from mlx_lm.generate import wired_limit

        try:
            with wired_limit(self._engine.model, [mx.default_stream(mx.default_device())]):
                while self.turn(wait=True):
                    pass
            ended = SchedulerClosed("the scheduler was shut down before this request ended")
        except BaseException as error:  # even KeyboardInterrupt: clients wait in other threads
            self._inbox.close(Mode.DEAD, error)
            ended = SchedulerClosed(f"the scheduler's worker died ({one_line(error)})")
            ended.__cause__ = error
        self._end_all(ended)
        with suppress(Exception):  # a worker that died may have left anything; its clients know
            self._clean_up()

    def turn(self, wait: bool) -> bool:
        """Do what was asked since the last time, then run a tick; False when that was the last one.

        With nothing to do, ``wait`` until something is asked.
        """
        if self._idle:
            self._settle()  # the last rows ended, the step queued ahead of that goes nowhere
        orders = self._inbox.take(wait=wait and self._idle)
        self._obey(orders)
        if orders.mode is Mode.STOPPING or (orders.mode is Mode.DRAINING and self._idle):
            return False
        if not self._idle:
            self._tick()
        self._publish()
        return True

    @property
    def _idle(self) -> bool:
        return not self.policy.live and not self.policy.waiting

    def _obey(self, orders: Orders) -> None:
        for ticket in orders.arrived:
            self.policy.wait(ticket)
        for ticket in orders.cancelled:
            if not ticket.ended:
                self._end(ticket, "cancelled")
        if orders.mode is Mode.DRAINING:
            for ticket in [ticket for ticket in self.policy.waiting if ticket.admitted is None]:
                self._end(ticket, "error", error=SchedulerClosed("the scheduler was shut down; this request never ran"))

    def _tick(self) -> None:
        """One decode step of every row that can, one piece of a prompt beside it."""
        if self.policy.pressed():
            self._settle()  # a row that is moved out must have no step under way; and some may have ended
        tick = self.policy.schedule()
        ahead = self._submit(tick.decode)
        self._settle()
        self._pending = ahead
        if any(not ticket.times for ticket in tick.decode):
            self._settle()  # a first token waits for nothing else
        if tick.prefill is not None and not tick.prefill.ended:
            self._prefill(tick.prefill)

    def _submit(self, rows: tuple[Ticket, ...]) -> PendingStep | None:
        """Queue a step; if that fails, it fails for its rows."""
        if not rows:
            return None
        before = replace(self._engine.counters)
        try:
            pending = self._engine.submit(StepBatch(tuple(ticket.row for ticket in rows)))
        except Exception as error:  # whatever the model's code raises
            self._settle()  # what was queued before is right
            for ticket in rows:
                if not ticket.ended:
                    self._fail(ticket, "its decode step failed", error)
            return None
        self._totals["steps"] += 1
        self._totals["fallbacks"] += len(rows) > 1 and not self._engine.support.batched
        for sequence in pending.rows:
            self._stepped(self.room.rows[sequence], before)
        for failed in pending.errors:  # said when the step is read
            self.room.rows[failed.id].steps_left = 0
        return pending

    def _stepped(self, ticket: Ticket, before: KvCounters) -> None:
        held = self._engine.held(ticket.row)
        ticket.forwarded += held - ticket.held
        ticket.held = held
        ticket.steps_left -= 1
        ticket.count(before, self._engine.counters)

    def _settle(self) -> None:
        """Read the step that is under way, if one is, and give its tokens out."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            output = self._engine.collect(pending)
        except Exception as error:  # what MLX only finds out when it computes
            for sequence in (*pending.rows, *(failed.id for failed in pending.errors)):
                if sequence in self.room.rows:
                    self._fail(self.room.rows[sequence], "its decode step failed", error)
            return
        self._give_out(output)

    def _give_out(self, output: StepOutput) -> None:
        for failed in output.errors:
            if failed.id in self.room.rows:
                self._fail(self.room.rows[failed.id], "it has no next token", failed.error)
        for row in output.rows:
            if row.id in self.room.rows:
                self._advance(self.room.rows[row.id], row)

    def _advance(self, ticket: Ticket, row: RowOutput) -> None:
        """Give a token to its client, and end the request if it was the last."""
        try:
            event = ticket.advance(row.token)
            if ticket.request.logprobs:
                logprobs = materialized(row.logprobs)
                mx.eval(logprobs)  # another thread could not
                event = replace(event, logprobs=logprobs)
        except Exception as error:  # a detokenizer is not our code
            self._fail(ticket, "its token could not be read", error)
            return
        self._totals["generated_tokens"] += 1
        ticket.handle.put(event)
        if ticket.request.on_token is not None:
            try:
                ticket.request.on_token(event)
            except Exception as error:
                self._fail(ticket, "its on_token callback raised", error)
                return
        if event.finish is not None:
            self._finish(ticket, event.finish)

    def _prefill(self, ticket: Ticket) -> None:
        """Forward the next piece of a prompt; at its boundary, keep what is there."""
        before = replace(self._engine.counters)
        try:
            done = self._engine.prefill(ticket.row, self.room.piece(ticket))
            ticket.held = done.stop
            ticket.forwarded += done.stop - done.start
            ticket.count(before, self._engine.counters)
            self._totals["prefill_pieces"] += 1
        except Exception as error:  # whatever the model's code raises
            self._fail(ticket, "its prefill failed", error)
            return
        if ticket.held == ticket.boundary:
            self._keep(ticket, ticket.fed[: ticket.held])

    def _finish(self, ticket: Ticket, finish: Finish) -> None:
        if ticket.cached and self._engine.shapes is None:  # else only keys that a prefill gave
            self._keep(ticket, ticket.fed)
        self._end(ticket, finish.reason, finish)

    def _keep(self, ticket: Ticket, tokens: tuple[int, ...]) -> None:
        """Give the KV of ``tokens`` to the prompt cache; if that fails, it is counted, and the request goes on."""
        try:
            self.cache.store(ticket.cache_key, tokens, ticket.row)
        except Exception:  # no room for a copy, say; or a step queued ahead failed half-way in mlx-lm's own caches
            self.cache.counters.failures += 1

    def _not_admitted(self, ticket: Ticket, error: Exception) -> None:
        self._fail(ticket, "it could not be brought in", error)

    def _fail(self, ticket: Ticket, what: str, error: Exception) -> None:
        failure = RequestFailed(f"{what} ({one_line(error)})")
        failure.__cause__ = error
        self._end(ticket, "error", error=failure)

    def _end(self, ticket: Ticket, reason: Ending, finish: Finish | None = None, error: RunError | None = None) -> None:
        """End a request, wherever it is: free what it holds, then tell the client."""
        self.room.vacate(ticket)
        self.policy.remove(ticket)
        self._tell(ticket, reason, finish, error)

    def _tell(self, ticket: Ticket, reason: Ending, finish: Finish | None, error: RunError | None) -> None:
        kind = {"cancelled": "cancelled", "error": "failed"}.get(reason, "finished")
        self._endings[kind] += 1
        if ticket.admitted is None:
            self._inbox.left_queue()
        ticket.end(reason, finish, error)
        self._inbox.ended()

    def _end_all(self, error: SchedulerClosed) -> None:
        """End every request that is left: its room is freed later."""
        left = [*self.policy.live, *self.policy.waiting, *self._inbox.take(wait=False).arrived]
        for ticket in left:
            self._tell(ticket, "error", None, error)

    def _clean_up(self) -> None:
        """Free what the requests that were left hold, and the prompt cache."""
        self._pending = None
        for ticket in (*self.policy.live, *self.policy.waiting):
            self.room.vacate(ticket)
        self.policy.live.clear()
        self.policy.waiting.clear()
        self.cache.clear()
        mx.synchronize()
        mx.clear_cache()
        self._publish()

    def _publish(self) -> None:
        usage, live, cache = self._engine.kv_usage, self.policy.live, self.cache
        free = self.room.free()
        self.metrics = SchedulerMetrics(
            queued=self._inbox.queued,
            prefilling=sum(ticket.prefilling for ticket in live),
            decoding=sum(not ticket.prefilling for ticket in live),
            detached=sum(ticket.admitted is not None for ticket in self.policy.waiting),
            detached_bytes=self.room.detached_bytes,
            kv_tokens_used=usage.used * BLOCK_TOKENS,
            kv_tokens_free=None if free is None else free * BLOCK_TOKENS,
            kv_bytes=usage.nbytes,
            cache_bytes=cache.nbytes,
            ticks=self.policy.tick,
            preemptions=self.policy.preemptions,
            recomputed_rows=self.room.recomputed,
            cache_hits=cache.counters.hits,
            cache_misses=cache.counters.misses,
            cache_adopted_tokens=cache.counters.adopted_tokens,
            cache_evictions=cache.counters.evictions,
            cache_failures=cache.counters.failures,
            submitted=self._inbox.submitted,
            **self._totals,
            **self._endings,
        )
