"""A scheduler whose ticks a test runs itself, what its requests should give, and what must be left in the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import mlx.nn as nn
import numpy as np

from mlxcel_engine.engine import (
    GREEDY,
    Engine,
    EngineConfig,
    ResolvedSampling,
    SamplingConfig,
    SequenceSpec,
    StopRules,
    generate,
    resolve_sampling,
)
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.own import OwnCaches
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.scheduler import BatchScheduler, Request, RequestHandle, RequestResult
from mlxcel_engine.scheduler.inbox import Mode
from tests.conformance.traces import TOLERANCE, LazyTrace, Step
from tests.tiny import tiny_model

CHUNK = 16
LONGEST = 60  # generated tokens of a reference
TRACES: dict[tuple[str, tuple[int, ...], str], LazyTrace] = {}
SEEDED = resolve_sampling(SamplingConfig.seeded(5).model_copy(update={"dry_sequence_breakers": ()}))
MIROSTAT = resolve_sampling(SamplingConfig(temperature=1.0, mirostat=2, seed=5))
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED, "mirostat": MIROSTAT}
# Dense KV, paged KV in pools of fixed size, a sliding window, and recurrent layers beside attention.
KINDS = {
    "dense": ("llama", "dense"),
    "paged": ("qwen3", "paged"),
    "sliding": ("gemma3_text", "dense"),
    "hybrid": ("lfm2", "dense"),
}


@cache
def model_of(name: str) -> nn.Module:
    return tiny_model(name)


def engine_of(kind: str, blocks: int | None = None) -> Engine:
    name, storage = KINDS[kind]
    if storage == "paged":
        return Engine(model_of(name), EngineConfig("paged", blocks))
    return Engine(model_of(name))


def alone(name: str, ids: tuple[int, ...], sampling: ResolvedSampling = GREEDY) -> LazyTrace:
    """The trace of a request on a dense engine of its own; one for each."""
    key = (name, ids, sampling.config.model_dump_json())
    if key not in TRACES:
        TRACES[key] = LazyTrace(steps_alone(name, ids, sampling))
    return TRACES[key]


def steps_alone(name: str, ids: tuple[int, ...], sampling: ResolvedSampling) -> Iterator[Step]:
    spec = SequenceSpec(ids, sampling, CHUNK)
    for step in generate(Engine(model_of(name)), spec, StopRules(frozenset(), LONGEST)):
        yield step.token, np.array(step.logprobs)


class Driven(BatchScheduler):
    """Its worker has no thread: :meth:`turn` runs a tick in the caller's."""

    def _start(self) -> None:
        pass

    def turn(self, times: int = 1) -> bool:
        """Run ticks; False after the last one."""
        goes_on = True
        for _ in range(times):
            goes_on = self._worker.turn(wait=False)
        return goes_on

    def finish(self) -> None:
        """Run until nothing is left to do, or it is shut down."""
        while self.turn() and not self._worker._idle:
            pass

    def end(self) -> None:
        """What the thread would do at its end, once the mode says so."""
        self._worker.run()

    def shutdown_now(self) -> None:
        self._inbox.close(Mode.STOPPING)
        self.end()


def rules(tokens: int, eos: tuple[int, ...] = ()) -> StopRules:
    return StopRules(frozenset(eos), tokens)


def check(handle: RequestHandle, name: str, request: Request) -> RequestResult:
    """The tokens so far, and their logprobs if they were asked for, are those of the request alone."""
    expected = alone(name, request.prompt, request.sampling)
    for index, event in enumerate(handle._events):
        token, logprobs = expected[index]
        assert (event.index, event.token) == (index, token)
        if event.logprobs is not None:
            assert np.abs(np.array(event.logprobs) - logprobs).max() <= TOLERANCE
    result = handle.wait(0)
    assert list(result.tokens) == expected.tokens(len(result.tokens))
    if result.timings.admitted is not None and result.finish is not None:
        steps = result.forwarded - result.recomputed - (result.prompt_tokens - 1 - result.adopted)
        assert 0 <= steps - len(result.tokens) <= 1, "forwarded tokens do not add up"
    return result


def check_nothing_left(scheduler: BatchScheduler) -> None:
    """No sequence, no KV, no lease; and the counters add up. The scheduler has ended, or is idle without a cache."""
    worker, store = scheduler._worker, scheduler._engine._kv
    assert (worker.policy.live, worker.policy.waiting, worker.room.rows) == ([], [], {})
    assert worker.room.detached_bytes == 0
    assert scheduler._engine.open_sequences == 0
    if isinstance(store, PagedKv):
        store.check_integrity()
        assert (store._tables, store._kept, store.held_bytes) == ({}, [], 0)
        assert store._allocator._claims == []
    elif isinstance(store, DenseKv):
        assert store._slabs == {}
    else:
        assert isinstance(store, OwnCaches)
        assert (store._caches, store._unfinished) == ({}, set())
    metrics = scheduler.metrics
    assert metrics.submitted == metrics.finished + metrics.cancelled + metrics.failed
    assert (metrics.queued, metrics.live, metrics.detached, metrics.kv_tokens_used) == (0, 0, 0, 0)


@contextmanager
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) - before == set()
