"""The prompt cache through the scheduler: what is adopted, what it costs, what is given up; hits equal cold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine import Engine, EngineConfig, StopRules
from mlxcel_engine.engine.kv import pool
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.scheduler import Request, RequestResult, SchedulerConfig
from tests.conformance.traces import prompt
from tests.scheduler.driven import (
    CHUNK,
    KINDS,
    SEEDED,
    Driven,
    alone,
    check,
    check_nothing_left,
    engine_of,
    model_of,
    rules,
)

CONFIG = SchedulerConfig(chunk=CHUNK, prompt_cache_bytes=10**8)
EXACT = ("sliding", "hybrid")


class Cached:
    """A scheduler with a prompt cache; every request is checked against itself alone and cold."""

    def __init__(self, kind: str, blocks: int | None = None, **config: int) -> None:
        self.kind, self.name = kind, KINDS[kind][0]
        self.scheduler = Driven(engine_of(kind, blocks), replace(CONFIG, **config))
        self.cache = self.scheduler._worker.cache

    def run(self, ids: tuple[int, ...], tokens: int = 10, **options: Any) -> RequestResult:
        request = Request(ids, rules(tokens), logprobs=True, **options)
        handle = self.scheduler.submit(request)
        self.scheduler.finish()
        result = check(handle, self.name, request)
        assert result.finish_reason == "length", result.error
        assert len(result.tokens) == tokens
        return result

    def end(self) -> None:
        self.scheduler.shutdown_now()
        check_nothing_left(self.scheduler)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 18, 31, 32, 33, 34, 48])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_twice(kind: str, length: int) -> None:
    """Lengths around the edges of blocks and chunks: adopted and forwarded tokens add up, and all equals cold."""
    cached = Cached(kind)
    first, second = cached.run(prompt(length)), cached.run(prompt(length))
    assert first.tokens == second.tokens
    assert first.adopted == 0
    whole = (length - 1) // 16 * 16 if kind == "paged" else length - 1
    assert second.adopted == whole
    assert second.forwarded == length - 1 - whole + len(second.tokens)
    assert second.partition.startswith(f"[{whole},")
    metrics = cached.scheduler.metrics
    assert (metrics.cache_hits, metrics.cache_adopted_tokens) == (int(whole > 0), whole)
    assert metrics.cache_hits + metrics.cache_misses == 2
    cached.end()


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_on_from_its_history(kind: str) -> None:
    """The next turn's prompt begins with the history; at its boundary a piece ends, and that is kept."""
    cached = Cached(kind)
    history, turn = prompt(40), prompt(9)
    first = cached.run((*history, *turn), boundary=40)
    assert first.partition == "[0,16)+[16,32)+[32,40)+[40,48)+[48,49)"
    other = cached.run((*history, *prompt(7)), boundary=40)
    assert other.adopted == (32 if kind == "paged" else 40)
    answer = (*history, *turn, *first.tokens)
    going_on = cached.run((*answer, *prompt(5)))
    held = len(answer) - (first.forwarded < len(history) + len(turn) + len(first.tokens))
    assert going_on.adopted == (held // 16 * 16 if kind == "paged" else held)
    cached.end()


def test_two_prompts_of_very_different_length_are_both_kept() -> None:
    for kind in ("dense", "paged"):
        cached = Cached(kind)
        asked = [Request(prompt(length), rules(10), logprobs=True) for length in (10, 332)]
        for _ in range(2):
            handles = [cached.scheduler.submit(request) for request in asked]
            cached.scheduler.finish()
            results = [check(handle, cached.name, request) for handle, request in zip(handles, asked, strict=True)]
        assert [result.adopted for result in results] == ([0, 320] if kind == "paged" else [9, 331])
        cached.end()


@pytest.mark.parametrize("kind", EXACT)
def test_a_ring_or_a_state_gives_no_shorter_prefix(kind: str) -> None:
    cached = Cached(kind)
    cached.run(prompt(20))
    other = cached.run((*prompt(20)[:6], *prompt(5)))
    assert other.adopted == 0
    assert "paged" not in other.storage
    cached.end()


def test_a_second_user_of_a_prefix_adds_no_bytes_of_it_when_paged() -> None:
    cached = Cached("paged")
    store = cached.scheduler._engine._kv
    assert isinstance(store, PagedKv)
    shared = prompt(64)
    cached.run((*shared, 1, 2, 3), boundary=64)
    cached.cache._tree.clear()
    held = []
    for tail in ((1, 2, 3), (4, 5, 6)):
        cached.scheduler.submit(Request((*shared, *tail), rules(30), boundary=64))
        cached.scheduler.turn(8)
        held.append(store.held_bytes // store.block_bytes)
    assert cached.scheduler.metrics.decoding == 2
    assert held[1] - held[0] == 1, "the tail and nothing else"
    cached.scheduler.finish()
    cached.end()


def test_keys_share_nothing_and_none_stays_out() -> None:
    cached = Cached("dense")
    cached.run(prompt(30), cache_key="a")
    assert cached.run(prompt(30), cache_key="b").adopted == 0
    assert cached.run(prompt(30), cache_key=None).adopted == 0
    assert cached.run(prompt(30), cache_key="a").adopted == 29
    metrics = cached.scheduler.metrics
    assert (metrics.cache_hits, metrics.cache_misses) == (1, 2)
    cached.end()


@pytest.mark.parametrize("kind", KINDS)
def test_it_stays_within_its_bytes_and_gives_up_the_least_recently_used(kind: str) -> None:
    one = Cached(kind)
    one.run(prompt(48))
    bytes_of_one = one.cache.nbytes
    cached = Cached(kind, prompt_cache_bytes=bytes_of_one * 5 // 2)
    prompts = [prompt(48, seed) for seed in range(4)]
    cached.run(prompts[0])
    cached.run(prompts[1])
    cached.run(prompts[0])
    cached.run(prompts[2])
    assert cached.cache.nbytes <= bytes_of_one * 5 // 2
    assert cached.scheduler.metrics.cache_evictions > 0
    assert cached.run(prompts[0]).adopted >= 32
    assert cached.run(prompts[1]).adopted == 0
    cached.end()


def test_a_request_larger_than_the_cache_drives_nothing_out() -> None:
    cached = Cached("dense", prompt_cache_bytes=40_000)
    cached.run(prompt(20))
    kept = cached.cache.nbytes
    cached.run(prompt(300))
    assert (cached.cache.nbytes, cached.scheduler.metrics.cache_evictions) == (kept, 0)
    cached.end()


def test_full_pools_give_up_prefixes_before_rows_but_none_in_use() -> None:
    cached = Cached("paged", blocks=8)
    for seed in range(3):
        cached.run(prompt(40, seed))
    before = cached.scheduler.metrics.cache_evictions
    shared = cached.run(prompt(40, 2), tokens=60)
    assert shared.adopted == 32
    metrics = cached.scheduler.metrics
    assert metrics.cache_evictions > before
    assert metrics.preemptions == 0
    cached.end()


def test_a_lease_keeps_its_prefix() -> None:
    cached = Cached("dense")
    cached.run(prompt(40))
    lease = cached.cache.lease("", prompt(40))
    assert lease is not None
    lease.opened()
    while cached.cache.evict():
        pass
    assert cached.run(prompt(40)).adopted == 39
    lease.end()
    while cached.cache.evict():
        pass
    assert cached.run(prompt(40)).adopted == 0
    cached.end()


def test_the_draws_do_not_depend_on_where_a_prefix_came_from() -> None:
    cached = Cached("dense")
    for _ in range(2):
        cached.run(prompt(33), sampling=SEEDED)
    assert cached.scheduler.metrics.cache_hits == 1
    cached.end()


def test_an_eos_right_away_and_a_hit_on_what_it_left() -> None:
    eos = alone("llama", prompt(30))[0][0]
    cached = Cached("dense")
    handle = cached.scheduler.submit(Request(prompt(30), StopRules(frozenset({eos}), 9)))
    cached.scheduler.finish()
    assert (handle.result(0).finish_reason, handle.result(0).tokens) == ("stop", (eos,))
    assert cached.run((*prompt(30), eos, 3)).adopted in (30, 31)
    cached.end()


@settings(max_examples=25)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    limit=st.sampled_from((10**8, 60_000, 20_000)),
    turns=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(0, 20), st.integers(1, 12)), max_size=8
    ),
)
def test_any_history_of_requests_equals_cold(kind: str, limit: int, turns: list[tuple[int, int, int, int]]) -> None:
    cached = Cached(kind, prompt_cache_bytes=limit)
    for stem, length, tail, tokens in turns:
        ids = (*prompt(50, stem)[:length], *prompt(50, 9)[:tail])
        cached.run(ids, tokens, boundary=length if tail else None)
        assert cached.cache.nbytes <= limit
        store = cached.scheduler._engine._kv
        if isinstance(store, PagedKv):
            store.check_integrity()
    cached.end()


def test_rows_that_share_a_cached_prefix_read_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU without the deterministic switch, with a prefix that is read once however short it is."""
    monkeypatch.setattr(pool, "LEAST_SHARED", 1)
    scheduler = Driven(Engine(model_of("qwen3"), EngineConfig("paged", exact=False)), CONFIG)
    stem = prompt(50, seed=1)
    requests = [Request((*stem, *prompt(n, seed=n)), rules(12), logprobs=True) for n in (3, 3, 3, 9)]
    handles = [scheduler.submit(request) for request in requests]
    scheduler.finish()
    results = [check(handle, "qwen3", request) for handle, request in zip(handles, requests, strict=True)]
    assert [result.adopted for result in results] == [0, 48, 48, 48]
    assert min(result.counters.shared for result in results) > 0
    scheduler.shutdown_now()
    check_nothing_left(scheduler)


def test_what_cannot_be_kept_does_not_fail_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = Cached("dense")
    monkeypatch.setattr(cached.scheduler._engine, "snapshot", lambda *_: 1 / 0)
    cached.run(prompt(40))
    assert cached.scheduler.metrics.cache_failures == 2  # at the boundary and in the end
    assert cached.scheduler.metrics.cache_bytes == 0
    cached.end()


def test_caches_that_a_step_left_half_way_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step queued ahead of a row's last token fails in its last layer: the layers before it are a token longer."""
    cached = Cached("hybrid")
    ids = prompt(20)
    eos = alone(cached.name, ids)[5][0]
    handle = cached.scheduler.submit(Request(ids, rules(12, (eos,))))
    engine = cached.scheduler._engine
    real, forwards = engine._model, []

    def model(inputs: mx.array, cache: Any) -> mx.array:
        logits = real(inputs, cache=cache)
        forwards.append(inputs.shape[1])
        if forwards.count(1) == 7:  # tokens 0 to 5 were drawn from six steps; this one is ahead of the last
            raise ValueError("it broke")
        return logits

    monkeypatch.setattr(engine, "_model", model)
    before = cached.scheduler.metrics.cache_bytes
    cached.scheduler.finish()
    assert handle.wait(0).finish_reason == "stop"
    assert cached.scheduler.metrics.cache_failures == 1
    monkeypatch.undo()
    assert before == 0
    again = cached.run((*ids, *alone(cached.name, ids).tokens(6), 7))
    assert again.adopted == 19  # what was kept at the boundary, and no more
    cached.end()
