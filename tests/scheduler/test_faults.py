"""Whatever goes wrong has its defined end, and the neighbours do not notice: they equal themselves alone."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine import Engine, SamplingConfig, StopRules, resolve_sampling
from mlxcel_engine.errors import EngineError
from mlxcel_engine.scheduler import (
    BatchScheduler,
    Request,
    RequestFailed,
    RequestHandle,
    SchedulerClosed,
    SchedulerConfig,
    TokenEvent,
)
from mlxcel_engine.scheduler.inbox import Mode
from tests.conformance.traces import prompt
from tests.scheduler.driven import (
    CHUNK,
    KINDS,
    Driven,
    check,
    check_nothing_left,
    engine_of,
    no_thread_left,
    rules,
)

CONFIG = SchedulerConfig(chunk=CHUNK)
LENGTHS = (3, 20, 9)
Patch = pytest.MonkeyPatch


def ask(length: int, tokens: int = 30, **options: Any) -> Request:
    return Request(prompt(length), rules(tokens), logprobs=True, **options)


class Crowd:
    """Requests on a driven scheduler, and how they are checked."""

    def __init__(self, kind: str, config: SchedulerConfig = CONFIG, blocks: int | None = None) -> None:
        self.name = KINDS[kind][0]
        self.scheduler = Driven(engine_of(kind, blocks), config)
        self.engine = self.scheduler._engine
        self.asked: list[tuple[RequestHandle, Request]] = []

    def submit(self, request: Request) -> RequestHandle:
        handle = self.scheduler.submit(request)
        self.asked.append((handle, request))
        return handle

    def finish(self, *but: RequestHandle) -> None:
        """Run to the end; all are what they are alone, and all have finished ``but`` those."""
        self.scheduler.finish()
        for handle, request in self.asked:
            result = check(handle, self.name, request)
            assert (result.finish_reason == "length") == (handle not in but), result.error
        check_nothing_left(self.scheduler)


def raising(engine: Engine, error: BaseException, at: int, method: str) -> Callable[..., Any]:
    """``engine.method``, but the call number ``at`` raises."""
    call, calls = getattr(engine, method), iter(range(1, 10**6))

    def replaced(*args: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise error
        return call(*args, **options)

    return replaced


def model_raises(engine: Engine, patch: Patch, at: int, error: BaseException, rows: int | None = None) -> None:
    """Let the model raise in its forward number ``at`` of one token (of ``rows`` rows, if given)."""
    model, calls = engine._model, iter(range(1, 10**6))

    def replaced(inputs: mx.array, cache: Any) -> mx.array:
        if inputs.shape[1] == 1 and rows in (None, inputs.shape[0]) and next(calls) == at:
            raise error
        return model(inputs, cache=cache)

    patch.setattr(engine, "_model", replaced)


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_a_forward_that_raises_fails_the_rows_of_its_step(kind: str, at: int, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    failed = [crowd.submit(ask(length)) for length in LENGTHS]
    model_raises(crowd.engine, monkeypatch, at, ValueError("it broke"), rows=3)
    crowd.scheduler.turn(4 + at)  # three rows decode from the fifth tick on
    late = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.finish(*failed)
    for handle in failed:
        with pytest.raises(RequestFailed, match=r"decode step failed \(ValueError: it broke\)") as caught:
            handle.result(0)
        assert isinstance(caught.value.__cause__, ValueError)
        assert len(handle._events) >= at - 1  # what was queued before was given out
    assert crowd.scheduler.metrics.failed == 3
    assert all(handle.done for handle in late)


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_row_by_row_only_the_row_fails_whose_forward_raises(kind: str, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.scheduler.turn(8)
    model_raises(crowd.engine, monkeypatch, 2, ValueError("it broke"))
    crowd.finish(handles[1])
    assert "ValueError: it broke" in str(handles[1].wait(0).error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefill_that_raises_fails_its_request(kind: str, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length)) for length in (*LENGTHS, 40)]
    # the pieces are [0,2), [0,16), [16,19), [0,8), ...
    monkeypatch.setattr(crowd.engine, "prefill", raising(crowd.engine, MemoryError("too long"), 3, "prefill"))
    crowd.finish(handles[1])
    assert "prefill failed (MemoryError: too long)" in str(handles[1].wait(0).error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_nan_fails_alone(kind: str, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.scheduler.turn(8)
    model, batched = crowd.engine._model, crowd.engine.support.batched
    steps = iter(range(10**6))

    def poisoned(inputs: mx.array, cache: Any) -> mx.array:
        logits = model(inputs, cache=cache)
        if next(steps) != (3 if batched else 3 * 3 + 1):
            return logits
        row = mx.arange(logits.shape[0])[:, None, None] == (1 if batched else 0)
        return mx.where(row, mx.nan, logits)

    monkeypatch.setattr(crowd.engine, "_model", poisoned)
    crowd.finish(handles[1])
    assert "masked or NaN" in str(handles[1].wait(0).error)


def test_evaluation_that_fails_late_fails_the_rows_of_the_step(monkeypatch: Patch) -> None:
    crowd = Crowd("dense")
    failed = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.scheduler.turn(6)
    monkeypatch.setattr(crowd.engine, "collect", raising(crowd.engine, RuntimeError("[malloc] no"), 1, "collect"))
    crowd.scheduler.turn()
    assert all("[malloc] no" in str(handle.wait(0).error) for handle in failed)
    crowd.submit(ask(12))
    crowd.finish(*failed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_raises_fails_its_request(kind: str) -> None:
    def on_token(event: TokenEvent) -> None:
        if event.index == 3:
            raise KeyError("socket")

    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length, on_token=on_token if length == 20 else None)) for length in LENGTHS]
    crowd.finish(handles[1])
    assert "on_token callback raised (KeyError: 'socket')" in str(handles[1].wait(0).error)
    assert len(handles[1]._events) == 4


def test_a_detokenizer_that_raises_fails_its_request() -> None:
    class Broken:
        last_segment = ""

        def add_token(self, token: int) -> None:
            raise UnicodeError("no such token")

        def finalize(self) -> None: ...

    crowd = Crowd("dense")
    handles = [crowd.submit(ask(length, detokenizer=Broken() if length == 20 else None)) for length in LENGTHS]
    crowd.finish(handles[1])
    assert "could not be read (UnicodeError: no such token)" in str(handles[1].wait(0).error)


def test_ids_without_an_embedding_are_refused_and_a_bias_outside_the_vocabulary_fails_its_request() -> None:
    crowd = Crowd("dense")
    good = crowd.submit(ask(9))
    with pytest.raises(EngineError, match="prompt id 1000000 is outside the vocabulary of 300"):
        crowd.scheduler.submit(Request((5, 10**6, 4), rules(5)))
    biased = resolve_sampling(SamplingConfig(logit_bias={10**6: 1.0}))
    bad = crowd.scheduler.submit(Request(prompt(9), rules(5), biased))
    crowd.finish()
    assert good.done
    assert "outside the vocabulary" in str(bad.wait(0).error)


# Cancel and shutdown in every state.


def queued(crowd: Crowd) -> RequestHandle:
    for _ in range(crowd.scheduler._config.max_batch):
        crowd.submit(ask(3, 50))
    handle = crowd.submit(ask(9))
    crowd.scheduler.turn(4)
    assert crowd.scheduler.metrics.queued == 1
    return handle


def between_chunks(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(3))
    handle = crowd.submit(ask(5 * CHUNK))
    crowd.scheduler.turn(3)
    assert crowd.scheduler.metrics.prefilling == 1
    return handle


def decoding(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(3))
    handle = crowd.submit(ask(9))
    crowd.scheduler.turn(6)
    assert crowd.scheduler.metrics.decoding == 2
    return handle


def preempted(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(40, 50))
    handle = crowd.submit(ask(40, 50))
    while not crowd.scheduler.metrics.detached:
        crowd.scheduler.turn()
    return handle


def preempted_in_prefill(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(1, 60))
    crowd.scheduler.turn(13)
    handle = crowd.submit(ask(6 * CHUNK, 2))
    crowd.scheduler.turn(2)
    while not crowd.scheduler.metrics.detached:
        crowd.scheduler.turn()
    assert not handle._events
    return handle


def last_step_ahead(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(3))
    handle = crowd.submit(ask(1, 4))
    while len(handle._events) < 3:
        crowd.scheduler.turn()
    return handle


STATES = {
    "queued": queued,
    "between prefill chunks": between_chunks,
    "decoding": decoding,
    "preempted": preempted,
    "last step ahead": last_step_ahead,
}


def crowd_for(kind: str, detached_bytes: int = 10**9) -> Crowd:
    """Room for 8 blocks."""
    tight = replace(CONFIG, max_batch=3, detached_bytes=detached_bytes)
    if kind == "paged":
        return Crowd(kind, tight, blocks=8)
    return Crowd(kind, replace(tight, kv_tokens=128))


@pytest.mark.parametrize("detached_bytes", [10**9, 0], ids=["kept", "recomputed"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_cancel_in_every_state(kind: str, state: str, detached_bytes: int) -> None:
    crowd = crowd_for(kind, detached_bytes)
    handle = STATES[state](crowd)
    handle.cancel()
    handle.cancel()
    crowd.scheduler.turn()
    result = handle.result(0)
    assert (result.finish_reason, result.error) == ("cancelled", None)
    assert [event.token for event in handle] == list(result.tokens)
    handle.cancel()
    crowd.finish(handle)


@pytest.mark.parametrize("detached_bytes", [10**9, 0], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_was_moved_out_comes_back_as_if_never_stopped(kind: str, detached_bytes: int) -> None:
    crowd = crowd_for(kind, detached_bytes)
    handle = preempted(crowd)
    crowd.finish()
    result = handle.result(0)
    assert result.preemptions >= 1
    assert (result.recomputed > 0) == (detached_bytes == 0)
    assert crowd.scheduler.metrics.recomputed_rows == (crowd.scheduler.metrics.preemptions if not detached_bytes else 0)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_without_drain_ends_every_state_at_once(kind: str, state: str) -> None:
    crowd = crowd_for(kind)
    STATES[state](crowd)
    crowd.scheduler._inbox.close(Mode.STOPPING)
    assert not crowd.scheduler.turn()
    crowd.scheduler.end()
    for handle, request in crowd.asked:
        result = check(handle, crowd.name, request)
        if result.finish_reason == "length":
            continue
        with pytest.raises(SchedulerClosed, match="was shut down before"):
            handle.result(0)
        with pytest.raises(SchedulerClosed):
            list(handle)
    check_nothing_left(crowd.scheduler)
    with pytest.raises(SchedulerClosed, match="takes no requests"):
        crowd.scheduler.submit(ask(3))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_with_drain_lets_the_admitted_ones_end(kind: str, state: str) -> None:
    crowd = crowd_for(kind)
    chosen = STATES[state](crowd)
    crowd.scheduler._inbox.close(Mode.DRAINING)
    while crowd.scheduler.turn():
        pass
    crowd.scheduler.end()
    for handle, request in crowd.asked:
        waits = state == "queued" and handle is chosen
        assert check(handle, crowd.name, request).finish_reason == ("error" if waits else "length")
    check_nothing_left(crowd.scheduler)


def test_shutdown_can_become_stricter_but_not_milder() -> None:
    crowd = crowd_for("dense")
    decoding(crowd)
    crowd.scheduler._inbox.close(Mode.DRAINING)
    assert crowd.scheduler.turn()
    crowd.scheduler._inbox.close(Mode.STOPPING)
    crowd.scheduler._inbox.close(Mode.DRAINING)
    assert not crowd.scheduler.turn()
    crowd.scheduler.end()
    check_nothing_left(crowd.scheduler)


# With the thread.


@contextmanager
def memory_comes_back() -> Iterator[None]:
    gc.collect()
    before = mx.get_active_memory()
    yield
    gc.collect()
    assert mx.get_active_memory() - before < 200_000


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sliding", "hybrid"])
def test_threads_and_memory_are_back_after_a_shutdown(kind: str, drain: bool) -> None:
    engine = engine_of(kind)
    with no_thread_left(), memory_comes_back():
        scheduler = BatchScheduler(engine, replace(CONFIG, prompt_cache_bytes=10**9, max_batch=4))
        handles = [scheduler.submit(ask(200 + length, 40)) for length in range(8)]
        next(iter(handles[1]))
        scheduler.shutdown(drain, timeout=60)
        scheduler.shutdown(timeout=60)
        assert {handle.wait(0).finish_reason for handle in handles} <= {"length", "error"}
        check_nothing_left(scheduler)
        del scheduler, handles


def test_an_idle_scheduler_shuts_down() -> None:
    with no_thread_left():
        BatchScheduler(engine_of("dense")).shutdown(timeout=60)
        with BatchScheduler(engine_of("dense")):
            pass


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt is none."""


DEATHS = ("prefill", "submit", "collect", "detach", "on_token", "metrics")


@pytest.mark.parametrize("where", DEATHS)
def test_a_worker_that_dies_ends_every_handle(where: str, monkeypatch: Patch) -> None:
    engine = engine_of("dense")
    error = Interrupt("the roof is on fire")
    if where in ("prefill", "submit", "collect", "detach"):
        monkeypatch.setattr(engine, where, raising(engine, error, 1 if where == "detach" else 3, where))

    def on_token(event: TokenEvent) -> None:
        if where == "on_token" and event.index == 4:
            raise error

    with no_thread_left(), memory_comes_back():
        scheduler = BatchScheduler(engine, replace(CONFIG, kv_tokens=128, max_batch=3))
        if where == "metrics":
            monkeypatch.setattr(scheduler._worker, "_publish", raising_publish(scheduler, error))
        handles = [scheduler.submit(ask(40, 50, on_token=on_token)) for _ in range(6)]
        for handle in handles:
            with pytest.raises(SchedulerClosed, match="worker died") as caught:
                handle.result(60)
            assert caught.value.__cause__ is error
        with pytest.raises(SchedulerClosed, match="dead and takes no requests") as refused:
            scheduler.submit(ask(3))
        assert refused.value.__cause__ is error
        scheduler.join(60)
        scheduler.shutdown(timeout=60)
        check_nothing_left(scheduler)
        del caught, refused, handles, handle, scheduler
        error.__traceback__ = None


def raising_publish(scheduler: BatchScheduler, error: BaseException) -> Callable[[], None]:
    publish, calls = scheduler._worker._publish, iter(range(1, 100))

    def replaced() -> None:
        if next(calls) == 5:
            raise error
        publish()

    return replaced


def test_leaving_with_by_an_exception_stops_at_once() -> None:
    handles = []

    def leaves() -> None:
        with BatchScheduler(engine_of("dense"), CONFIG) as scheduler:
            handles.append(scheduler.submit(Request(prompt(3), StopRules(frozenset(), 10**6))))
            next(iter(handles[0]))
            raise KeyError("mine")

    with no_thread_left(), pytest.raises(KeyError, match="mine"):
        leaves()
    assert isinstance(handles[0].wait(0).error, SchedulerClosed)


def test_waiting_gives_up_after_its_time() -> None:
    release = threading.Event()
    with BatchScheduler(engine_of("dense"), CONFIG) as scheduler:
        handle = scheduler.submit(Request(prompt(3), rules(3), on_token=lambda _: release.wait(60)))
        for wait in (
            lambda: handle.result(0.01),
            lambda: scheduler.join(0.01),
            lambda: scheduler.shutdown(timeout=0.01),
        ):
            with pytest.raises(TimeoutError):
                wait()
        release.set()
    assert handle.result().finish_reason == "length"
