"""A scheduler that serves for long: memory stays flat while requests come, go, are moved out and share prefixes."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mlxcel_engine.engine import GREEDY, Engine, EngineConfig
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.scheduler import Request, RequestHandle, SchedulerConfig
from tests.engine.test_memory import GROWTH, MIROSTAT, PENALIZED, SETTLED, VOCAB, resident, smallest_model
from tests.scheduler.driven import Driven, check_nothing_left, rules

ROOT = Path(__file__).parents[2]
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
    """Run the churn, check that the counters add up and nothing is left, and return the growth in bytes once settled.

    ``leak`` bytes a tick are held on to: the negative control.
    """
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
    churn.run(settled)
    before, leaked = resident(), []
    for _ in range(ticks - settled):
        churn.run(1)
        leaked.append(b"x" * leak)
    grown = resident() - before
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
    return grown


def grown(storage: Storage, ticks: int, settled: int, leak: int = 0) -> int:
    """:func:`serve` in a process of its own: what other tests have freed would hide a leak here."""
    call = f"print(serve({storage!r}, {ticks}, {settled}, {leak}))"
    code = f"import mlxcel_engine; from tests.scheduler.test_memory import serve; {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_memory_stays_flat_while_requests_come_and_go(storage: Storage) -> None:
    assert grown(storage, 4_000, SETTLED) < GROWTH


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_memory_stays_flat_over_20000_ticks(storage: Storage) -> None:
    assert grown(storage, 20_000, SETTLED) < GROWTH


def test_a_leak_is_seen() -> None:
    """Negative control: 10,000 bytes a tick over 800 ticks."""
    assert grown("dense", 1_200, settled=400, leak=10_000) > GROWTH
