"""One request is bitwise the engine's, many equal each alone; order, lookahead, refusals."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StopRules, generate
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.errors import EngineError
from mlxcel_engine.scheduler import BatchScheduler, QueueFull, Request, SchedulerConfig
from tests.conformance.configs.common import COMMON
from tests.conformance.traces import prompt, solo
from tests.scheduler.driven import (
    CHUNK,
    KINDS,
    SAMPLINGS,
    Driven,
    check,
    check_nothing_left,
    engine_of,
    model_of,
    no_thread_left,
    rules,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = SchedulerConfig(chunk=CHUNK)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("length", [1, 2, CHUNK, CHUNK + 1, 40])
@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_one_request_is_bitwise_the_engine(storage: Storage, length: int, sampling: str) -> None:
    request = Request(prompt(length), rules(20), SAMPLINGS[sampling], logprobs=True)
    engine = Engine(model_of("llama"), EngineConfig(storage))
    expected = list(generate(engine, SequenceSpec(request.prompt, request.sampling, CHUNK), request.rules))
    own = Engine(model_of("llama"), EngineConfig(storage))
    with BatchScheduler(own, CONFIG) as scheduler:
        handle = scheduler.submit(request)
        events = list(handle)
    assert [event.token for event in events] == [step.token for step in expected]
    for event, step in zip(events, expected, strict=True):
        assert np.array(event.logprobs).tobytes() == np.array(step.logprobs).tobytes()
    result = handle.result()
    assert (result.storage, result.counters, result.adopted) == (storage, engine.counters, 0)
    assert result.forwarded == length - 1 + 20
    assert result.partition == str(engine.plan(engine.open(SequenceSpec(request.prompt, chunk=CHUNK))))


@pytest.mark.parametrize(
    "scaling",
    [
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    ],
    ids=["llama3", "yarn"],
)
def test_a_rope_with_lazy_arrays_is_made_in_one_thread_and_runs_in_another(scaling: dict[str, object]) -> None:
    def build() -> llama.Model:
        mx.random.seed(3)
        config = {"model_type": "llama", **COMMON, "rope_scaling": scaling}
        return llama.Model(llama.ModelArgs.from_dict(config))  # nothing is evaluated

    with BatchScheduler(Engine(build()), CONFIG) as scheduler:
        handles = [scheduler.submit(Request(prompt(length), rules(12))) for length in (3, 40)]
        found = [list(handle.result().tokens) for handle in handles]
    assert found == [solo(build(), prompt(length), 12, CHUNK)[0] for length in (3, 40)]


def test_without_evaluation_such_a_model_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above: it is the evaluation of everything that lets them run."""
    monkeypatch.setattr("mlxcel_engine.scheduler.scheduler.evaluate_everything", lambda model: None)
    config = {"model_type": "llama", **COMMON, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}
    with BatchScheduler(Engine(llama.Model(llama.ModelArgs.from_dict(config))), CONFIG) as scheduler:
        result = scheduler.submit(Request(prompt(9), rules(4))).wait()
    assert "no Stream" in str(result.error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_equals_each_alone(kind: str) -> None:
    with no_thread_left(), BatchScheduler(engine_of(kind), replace(CONFIG, max_batch=5)) as scheduler:
        requests = [
            Request(prompt(length), rules(20 + length % 7), sampling, logprobs=True)
            for length in (1, 3, 12, 40, 40)
            for sampling in SAMPLINGS.values()
        ]
        handles = [scheduler.submit(request) for request in requests]
    for handle, request in zip(handles, requests, strict=True):
        assert check(handle, KINDS[kind][0], request).finish_reason == "length"
    check_nothing_left(scheduler)
    several = scheduler.metrics.fallbacks
    assert (several > 0) == (kind in ("sliding", "hybrid"))


def refusals() -> dict[str, tuple[Callable[[], object], str]]:
    def scheduler(config: SchedulerConfig = CONFIG, engine: EngineConfig | None = None) -> Driven:
        return Driven(Engine(model_of("llama"), engine), config)

    def submit(request: Request, config: SchedulerConfig = CONFIG) -> object:
        return scheduler(config).submit(request)

    def used() -> object:
        engine = Engine(model_of("llama"))
        engine.open(SequenceSpec((1,)))
        return BatchScheduler(engine)

    bound = replace(CONFIG, kv_tokens=64)
    return {
        "empty prompt": (lambda: submit(Request((), rules(4))), "at least one prompt token"),
        "full context": (
            lambda: submit(Request(prompt(9), StopRules(frozenset(), 4, context_length=9))),
            "leaves no room",
        ),
        "no detokenizer": (lambda: submit(Request(prompt(9), StopRules(frozenset(), 4, ("x",)))), "need a detokenizer"),
        "boundary": (lambda: submit(Request(prompt(9), rules(4), boundary=9)), "boundary at 9"),
        "priority": (lambda: submit(Request(prompt(9), rules(4), priority=101)), "priority 101"),
        "prompt beyond the KV": (lambda: submit(Request(prompt(70), rules(1)), bound), "80 tokens of KV, of 64 in all"),
        "answer beyond the KV": (lambda: submit(Request(prompt(9), rules(60)), bound), "lower max_tokens"),
        "kv_tokens beside fixed pools": (lambda: scheduler(bound, EngineConfig("paged", 8)), "fixed size"),
        "an engine in use": (used, "1 open sequences"),
        "max_batch": (lambda: SchedulerConfig(max_batch=0), "max_batch=0"),
        "bytes": (lambda: SchedulerConfig(detached_bytes=-1), "detached_bytes=-1"),
        "kv_tokens": (lambda: SchedulerConfig(kv_tokens=0), "kv_tokens=0"),
    }


@pytest.mark.parametrize("name", refusals())
def test_what_cannot_run_is_refused_at_once_by_name(name: str) -> None:
    call, message = refusals()[name]
    with pytest.raises(EngineError, match=message):
        call()


def test_a_full_queue_refuses_and_takes_again_when_there_is_a_place() -> None:
    scheduler = Driven(Engine(model_of("llama")), replace(CONFIG, max_batch=1, queue=2))
    waiting = [scheduler.submit(Request(prompt(3), rules(4))) for _ in range(2)]
    with pytest.raises(QueueFull, match="2 requests wait already"):
        scheduler.submit(Request(prompt(3), rules(4)))
    scheduler.turn()
    assert scheduler.metrics.queued == 1
    waiting.append(scheduler.submit(Request(prompt(3), rules(4))))
    with pytest.raises(QueueFull):
        scheduler.submit(Request(prompt(3), rules(4)))
    waiting[1].cancel()
    scheduler.turn()
    waiting.append(scheduler.submit(Request(prompt(3), rules(4))))
    scheduler.finish()
    assert [handle.wait(0).finish_reason for handle in waiting] == ["length", "cancelled", "length", "length"]
    check_nothing_left(scheduler)


def test_a_higher_priority_is_served_first_and_equal_ones_in_turn() -> None:
    scheduler = Driven(Engine(model_of("llama")), replace(CONFIG, max_batch=1))
    ended: list[str] = []

    def says(name: str) -> Callable[[object], None]:
        return lambda _: ended.append(name)

    for name, priority in (("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", -1)):
        scheduler.submit(Request(prompt(3), rules(1), priority=priority, on_token=says(name)))
    scheduler.finish()
    assert ended == ["c", "d", "a", "b", "e"]


def test_tokens_flow_while_a_long_prompt_is_prefilled() -> None:
    scheduler = Driven(Engine(model_of("llama")), CONFIG)
    live = scheduler.submit(Request(prompt(3), rules(60)))
    scheduler.turn(3)
    long = scheduler.submit(Request(prompt(10 * CHUNK + 1), rules(5)))
    before = len(live._events)
    for tick in range(10):
        scheduler.turn()
        assert scheduler.metrics.prefilling == (tick < 9)
        assert len(live._events) == before + tick + 1
    scheduler.finish()
    assert check(long, "llama", Request(prompt(10 * CHUNK + 1), rules(5))).finish_reason == "length"


def before(engine: Engine, name: str, do: Callable[[], object]) -> None:
    """Let ``do`` be called before each call of the engine's method ``name``."""
    call = getattr(engine, name)

    def replaced(*args: object) -> object:
        do()
        return call(*args)

    setattr(engine, name, replaced)


def test_the_next_step_is_queued_before_the_last_is_read_but_for_the_first_token_and_not_past_a_limit() -> None:
    scheduler = Driven(Engine(model_of("llama")), CONFIG)
    calls: list[str] = []
    for name in ("submit", "collect"):
        before(scheduler._engine, name, partial(calls.append, name))
    handle = scheduler.submit(Request(prompt(1), rules(4)))
    scheduler.finish()
    assert calls == ["submit", "collect", "submit", "submit", "collect", "submit", "collect", "collect"]
    assert handle.result(0).forwarded == 4


def test_the_lock_is_free_while_mlx_works() -> None:
    scheduler = BatchScheduler(engine_of("paged"), CONFIG)
    engine, lock = scheduler._engine, scheduler._inbox._changed
    held: list[bool] = []

    def tries() -> None:
        taken = lock.acquire(timeout=5)
        held.append(not taken)
        if taken:
            lock.release()

    def another_thread_tries() -> None:
        other = threading.Thread(target=tries)
        other.start()
        other.join()

    for name in ("submit", "collect", "prefill"):
        before(engine, name, another_thread_tries)
    with scheduler:
        scheduler.submit(Request(prompt(20), rules(3))).result(60)
    assert len(held) > 6
    assert not any(held)


def test_a_prompt_given_as_a_list_disturbs_nobody() -> None:
    """A tokenizer returns a list; the prompt cache could not look it up, and the worker died of it."""
    engine = Engine(model_of("qwen3"), EngineConfig("paged", 64))
    with BatchScheduler(engine, SchedulerConfig(prompt_cache_bytes=2**20)) as scheduler:
        handles = [scheduler.submit(Request(ids, rules(6))) for ids in (prompt(5), list(prompt(5)))]  # type: ignore[arg-type]  # a list, as a tokenizer gives it
        first, second = (handle.result() for handle in handles)
    assert first.tokens == second.tokens == tuple(solo(model_of("qwen3"), prompt(5), 6)[0])


@pytest.mark.parametrize("wrong", [{"cache_key": ["a"]}, {"boundary": 1.5}], ids=["cache_key", "boundary"])
def test_a_request_that_the_prompt_cache_could_not_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=f"{next(iter(wrong))} .*: give"):
        Request((1, 2), rules(3), **wrong)
