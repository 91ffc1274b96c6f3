"""One row object per request: what the client asked, where it stands, what was done for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from mlxcel_engine.engine.kv.store import KvCounters
from mlxcel_engine.errors import EngineError
from mlxcel_engine.scheduler.policy import Seat
from mlxcel_engine.scheduler.request import Request, RequestResult, Timings, TokenEvent

if TYPE_CHECKING:
    from mlxcel_engine.engine import DetachedSequence, Finish, RowProgress, SequenceId, SequenceSpec
    from mlxcel_engine.scheduler.handle import RequestHandle
    from mlxcel_engine.scheduler.prompt_cache import Lease
    from mlxcel_engine.scheduler.request import Ending


@dataclass(eq=False, kw_only=True)
class Ticket(Seat):
    """``boundary`` tokens of the prompt are kept in the prompt cache, None without one.

    ``sequence`` is set while it is in the engine, ``detached`` while it is moved out; neither while it is new.
    """

    request: Request
    handle: RequestHandle
    spec: SequenceSpec
    progress: RowProgress
    submitted: float
    storage: str
    boundary: int | None
    sequence: SequenceId | None = None
    detached: DetachedSequence | None = None
    lease: Lease | None = None
    admitted: float | None = None
    times: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    partition: str = ""
    adopted: int = 0
    forwarded: int = 0
    recomputed: int = 0
    preemptions: int = 0
    kv_bytes: int = 0
    counters: KvCounters = field(default_factory=KvCounters)
    ended: bool = False

    @property
    def row(self) -> SequenceId:
        """Its sequence in the engine; only asked for while it is there."""
        if self.sequence is None:
            raise EngineError("this request is not in the engine")
        return self.sequence

    @property
    def cached(self) -> bool:
        """Whether it uses the prompt cache."""
        return self.boundary is not None

    @property
    def cache_key(self) -> str:
        """With whom it shares prefixes."""
        return self.request.cache_key or ""

    @property
    def fed(self) -> tuple[int, ...]:
        """The tokens that come before the one its next step feeds, or, while it is prefilled, all that it will hold."""
        return (*self.spec.prompt, *self.progress.tokens)[: max(self.held, self.target)]

    def count(self, before: KvCounters, after: KvCounters) -> None:
        """Add what the storage did in a forward that this row was part of."""
        for counter in fields(KvCounters):
            done = getattr(after, counter.name) - getattr(before, counter.name)
            setattr(self.counters, counter.name, getattr(self.counters, counter.name) + done)

    def advance(self, token: int) -> TokenEvent:
        """Take the next token; the event has no logprobs yet."""
        step = self.progress.advance(token)
        self.times.append(time.perf_counter())
        self.text.append(step.text)
        return TokenEvent(len(self.times) - 1, token, step.text, step.finish, self.times[-1])

    def end(self, reason: Ending, finish: Finish | None = None, error: Exception | None = None) -> None:
        """Give the client the result."""
        self.ended = True
        timings = Timings(self.submitted, time.perf_counter(), self.admitted, tuple(self.times))
        self.handle.end(
            RequestResult(
                tokens=tuple(self.progress.tokens),
                text="".join(self.text),
                finish_reason=reason,
                finish=finish,
                error=error,
                timings=timings,
                prompt_tokens=len(self.spec.prompt),
                adopted=self.adopted,
                forwarded=self.forwarded,
                recomputed=self.recomputed,
                preemptions=self.preemptions,
                partition=self.partition,
                storage=self.storage,
                kv_bytes=self.kv_bytes,
                counters=self.counters,
            )
        )
