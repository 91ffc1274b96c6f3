"""Whole workloads against a KV budget that does not hold them: every request is what it is alone, nothing is left."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.scheduler import BatchScheduler, QueueFull, Request, RequestHandle, SchedulerConfig
from tests.conformance.traces import prompt
from tests.scheduler.driven import (
    CHUNK,
    KINDS,
    SAMPLINGS,
    Driven,
    alone,
    check,
    check_nothing_left,
    engine_of,
    no_thread_left,
    rules,
)

BLOCKS = 8  # of 16 tokens
CONFIG = SchedulerConfig(chunk=CHUNK, max_batch=5, queue=100, priority_ticks=20)
STEM = prompt(60, seed=1)
LENGTHS = (1, 2, 16, 33, 47)


def budget(kind: str, blocks: int = BLOCKS) -> tuple[int | None, int | None]:
    """Blocks of fixed pools, or a bound of tokens: whichever the storage has."""
    return (blocks, None) if kind == "paged" else (None, blocks * 16)


@dataclass
class Asked:
    handle: RequestHandle
    request: Request
    cancelled: bool = False


def crowd_of_64(kind: str, scheduler: BatchScheduler, pause: Callable[[float], object]) -> list[Asked]:
    """Submit requests of random length, limits, sampling, arrival and priority; cancel some."""
    draw = random.Random(kind)
    asked: list[Asked] = []
    for _ in range(64):
        request = Request(
            draw.choice((STEM, prompt(60, seed=2)))[: draw.choice(LENGTHS)],
            rules(draw.randint(1, 50), draw.choice(((), (alone(KINDS[kind][0], STEM[:5])[7][0],)))),
            draw.choice(list(SAMPLINGS.values())),
            priority=draw.randint(-1, 1),
            cache_key=draw.choice(("", "", None)),
            logprobs=True,
        )
        asked.append(Asked(scheduler.submit(request), request))
        if draw.random() < 0.3:
            pause(draw.random())
        if draw.random() < 0.2:
            draw.choice(asked).handle.cancel()
    return asked


def check_crowd(kind: str, scheduler: BatchScheduler, asked: list[Asked]) -> None:
    check_nothing_left(scheduler)
    metrics = scheduler.metrics
    endings = [check(one.handle, KINDS[kind][0], one.request).finish_reason for one in asked]
    assert set(endings) <= {"stop", "length", "cancelled"}
    assert metrics.submitted == 64
    assert metrics.cancelled == endings.count("cancelled")
    assert metrics.generated_tokens == sum(len(one.handle.wait(0).tokens) for one in asked)


def tight(kind: str, detached_bytes: int) -> tuple[int | None, SchedulerConfig]:
    blocks, tokens = budget(kind)
    return blocks, replace(CONFIG, kv_tokens=tokens, detached_bytes=detached_bytes, prompt_cache_bytes=200_000)


@pytest.mark.parametrize("detached_bytes", [10**9, 6_000], ids=["kept", "some-recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_64_requests_against_a_budget_that_forces_preemption(kind: str, detached_bytes: int) -> None:
    """Tick by tick, so that it is the same in every run."""
    blocks, config = tight(kind, detached_bytes)
    scheduler = Driven(engine_of(kind, blocks), config)
    asked = crowd_of_64(kind, scheduler, lambda part: scheduler.turn(int(part * 20)))
    scheduler.finish()
    scheduler.shutdown_now()
    check_crowd(kind, scheduler, asked)
    assert scheduler.metrics.preemptions > 0
    assert (scheduler.metrics.recomputed_rows > 0) == (detached_bytes < 10**9)


@pytest.mark.parametrize("kind", KINDS)
def test_64_requests_with_the_thread(kind: str) -> None:
    blocks, config = tight(kind, 6_000)
    with no_thread_left(), BatchScheduler(engine_of(kind, blocks), config) as scheduler:
        asked = crowd_of_64(kind, scheduler, lambda part: time.sleep(part * 0.02))
    check_crowd(kind, scheduler, asked)


class Workload(RuleBasedStateMachine):
    """A scheduler whose ticks are run one by one, beside what was asked of it."""

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        blocks=st.sampled_from((7, 10, 16)),
        detached_bytes=st.sampled_from((10**9, 30_000, 0)),
        cache=st.sampled_from((0, 30_000, 10**9)),
        batch=st.sampled_from((1, 3, 5)),
    )
    def begin(self, kind: str, blocks: int, detached_bytes: int, cache: int, batch: int) -> None:
        fixed, tokens = budget(kind, blocks)
        self.name, self.total = KINDS[kind][0], blocks
        config = replace(
            CONFIG,
            kv_tokens=tokens,
            detached_bytes=detached_bytes,
            prompt_cache_bytes=cache,
            max_batch=batch,
            queue=6,
        )
        self.scheduler = Driven(engine_of(kind, fixed), config)
        self.asked: list[Asked] = []

    @rule(
        seed=st.sampled_from((1, 2)),
        length=st.sampled_from(LENGTHS),
        tokens=st.integers(1, 50),
        sampling=st.sampled_from(sorted(SAMPLINGS)),
        priority=st.integers(-1, 1),
        key=st.sampled_from(("", "other", None)),
        boundary=st.sampled_from((None, 0, 16)),
    )
    def asks(
        self, seed: int, length: int, tokens: int, sampling: str, priority: int, key: str | None, boundary: int | None
    ) -> None:
        request = Request(
            prompt(60, seed)[:length],
            rules(tokens),
            SAMPLINGS[sampling],
            priority=priority,
            cache_key=key,
            boundary=boundary if length > 16 else None,
            logprobs=True,
        )
        queued = self.scheduler._inbox.queued
        try:
            self.asked.append(Asked(self.scheduler.submit(request), request))
        except QueueFull:
            assert queued == 6

    @rule(times=st.sampled_from((1, 2, 5, 20)))
    def ticks(self, times: int) -> None:
        self.scheduler.turn(times)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.asked))
        one.handle.cancel()
        one.cancelled = True

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        worker, engine = self.scheduler._worker, self.scheduler._engine
        assert {ticket.sequence for ticket in worker.policy.live} == set(worker.room.rows)
        assert engine.open_sequences == len(worker.room.rows)
        assert engine.kv_usage.used <= self.total
        for ticket in worker.policy.live:
            assert engine._kv.length(ticket.row) == ticket.held
        detached = [ticket.detached for ticket in worker.policy.waiting if ticket.detached is not None]
        assert worker.room.detached_bytes == sum(one.nbytes for one in detached)
        if isinstance(engine._kv, PagedKv):
            engine._kv.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.finish()
        for one in self.asked:
            ending = check(one.handle, self.name, one.request).finish_reason
            assert ending == "length" or (ending == "cancelled" and one.cancelled)
        self.scheduler.shutdown_now()
        check_nothing_left(self.scheduler)


Workload.TestCase.settings = settings(max_examples=15, stateful_step_count=25, suppress_health_check=list(HealthCheck))
TestWorkload = Workload.TestCase
