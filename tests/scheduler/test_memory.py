"""A scheduler that serves for long: memory stays flat while requests come, go, are moved out and share prefixes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mlxcel_engine.engine import GREEDY, Engine, EngineConfig
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.scheduler import Request, RequestHandle, SchedulerConfig
from tests.engine.test_memory import MIROSTAT, PENALIZED, VOCAB, smallest_model
from tests.leaks import GROWTH, LONG, allowed, grown, growth
from tests.scheduler.driven import Driven, check_nothing_left, rules

BLOCKS = 12


@dataclass
class Churn:
    """Random requests, about as many as end; what is known of them is added up, and then forgotten."""

    scheduler: Driven
    random: random.Random
    live: list[RequestHandle] = field(default_factory=list)
    tokens: int = 0
    endings: dict[str, int] = field(default_factory=dict)

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            while len(self.live) < 8:
                self.live.append(self.scheduler.submit(self.request()))
            if self.random.random() < 0.02:
                self.random.choice(self.live).cancel()
            self.scheduler.turn()
            for handle in [handle for handle in self.live if handle.done]:
                self.live.remove(handle)
                self.count(handle)

    def request(self) -> Request:
        stem = random.Random(self.random.randrange(4))
        prompt = [stem.randrange(VOCAB) for _ in range(self.random.randrange(60))]
        prompt += [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, 20))]
        return Request(
            tuple(prompt),
            rules(self.random.randint(1, 60)),
            self.random.choices((GREEDY, PENALIZED, MIROSTAT), (6, 1, 1))[0],
            priority=self.random.randint(-1, 1),
            logprobs=self.random.random() < 0.1,
        )

    def count(self, handle: RequestHandle) -> None:
        result = handle.wait(0)
        self.tokens += len(result.tokens)
        self.endings[result.finish_reason] = self.endings.get(result.finish_reason, 0) + 1


def serve(storage: Storage, ticks: int, settled: int, leak: int) -> int:
    """Run the churn, check that the counters add up and nothing is left, and return by how many bytes memory grew."""
    engine = Engine(smallest_model(), EngineConfig(storage, BLOCKS if storage == "paged" else None))
    config = SchedulerConfig(
        max_batch=4,
        queue=16,
        chunk=16,
        kv_tokens=None if storage == "paged" else BLOCKS * 16,
        detached_bytes=5_000,
        prompt_cache_bytes=30_000,
    )
    churn = Churn(Driven(engine, config), random.Random(1))
    grew = growth(churn.run, ticks, settled, leak)
    churn.scheduler.finish()
    for handle in churn.live:
        churn.count(handle)
    churn.scheduler.shutdown_now()
    check_nothing_left(churn.scheduler)
    metrics = churn.scheduler.metrics
    assert (metrics.finished, metrics.cancelled) == (churn.endings["length"], churn.endings["cancelled"])
    assert metrics.generated_tokens == churn.tokens
    rare = (
        metrics.preemptions,
        metrics.recomputed_rows,
        metrics.cache_hits,
        metrics.cache_evictions,
        metrics.cancelled,
    )
    assert min(rare) > ticks // 1_000, metrics
    return grew


@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_memory_stays_flat_while_requests_come_and_go(storage: Storage) -> None:
    assert grown(__name__, storage, 3_500) < allowed(3_500)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_memory_stays_flat_over_20000_ticks(storage: Storage) -> None:
    assert grown(__name__, storage, LONG) < GROWTH


def test_a_leak_is_seen() -> None:
    """Negative control: 10,000 bytes a tick over 800 ticks."""
    assert grown(__name__, "dense", 1_200, settled=400, leak=10_000) > GROWTH
