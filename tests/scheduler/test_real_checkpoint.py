"""The scheduler on the embedded default checkpoint: bitwise the engine alone, and prefixes that cost nothing twice."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mlxcel_engine.device import select_device
from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StopRules, generate
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import LoadedModel, load
from mlxcel_engine.loader.policy import resolve_policy
from mlxcel_engine.prompts import encode_prompt
from mlxcel_engine.scheduler import BatchScheduler, Request, SchedulerConfig

pytestmark = pytest.mark.checkpoint
SHARED, TAIL = 1024, 32


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    cache = CheckpointCache(default_cache_root(os.environ))
    return load("default", resolve_policy(select_device("auto")), cache, lambda _: None)


def random_ids(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(100, 40_000, length))


@pytest.mark.parametrize(("ctx", "tokens"), [(256, 64), (2048, 32)])
def test_one_request_is_bitwise_the_engine(ctx: int, tokens: int, loaded: LoadedModel) -> None:
    ids, rules = random_ids(ctx), StopRules(frozenset(), tokens)
    expected = list(generate(Engine(loaded.model), SequenceSpec(ids), rules))
    storages: tuple[Storage, ...] = ("dense", "paged")
    for storage in storages:
        with BatchScheduler(Engine(loaded.model, EngineConfig(storage))) as scheduler:
            events = list(scheduler.submit(Request(ids, rules, logprobs=True)))
        for event, step in zip(events, expected, strict=True):
            assert event.token == step.token
            assert np.array(event.logprobs).tobytes() == np.array(step.logprobs).tobytes()


def test_it_answers_in_english_and_stops(loaded: LoadedModel) -> None:
    prompt = encode_prompt(loaded.tokenizer, "p", "What is the capital of France?", chat=True)
    request = Request(prompt.ids, StopRules(loaded.eos_ids, 64), detokenizer=loaded.tokenizer.detokenizer)
    with BatchScheduler(Engine(loaded.model)) as scheduler:
        result = scheduler.submit(request).result()
    assert (result.text, result.finish_reason) == ("The capital of France is Paris.", "stop")


@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_a_shared_prefix_is_adopted_and_the_ids_are_those_of_a_miss(storage: Storage, loaded: LoadedModel) -> None:
    """How much sooner the first token comes, ``benchmarks/scheduler.py`` measures."""
    prompts = [(*random_ids(SHARED), *random_ids(TAIL, seed)) for seed in (1, 2)]
    rules = StopRules(frozenset(), 16)
    with BatchScheduler(Engine(loaded.model, EngineConfig(storage))) as cold:
        expected = [cold.submit(Request(ids, rules)).result().tokens for ids in prompts]
    engine = Engine(loaded.model, EngineConfig(storage))
    with BatchScheduler(engine, SchedulerConfig(prompt_cache_bytes=2**30)) as scheduler:
        results = []
        for ids in prompts:
            results.append(scheduler.submit(Request(ids, rules, boundary=SHARED)).result())
        scheduler.join()
        assert [result.tokens for result in results] == expected
        assert [result.adopted for result in results] == [0, SHARED]
        assert [result.forwarded for result in results] == [SHARED + TAIL - 1 + 16, TAIL - 1 + 16]
        if isinstance(engine._kv, PagedKv):  # two tails and answers, the prefix once
            own = -(-(TAIL + 16) // 16)
            assert engine._kv.held_bytes <= (SHARED // 16 + 2 * own) * engine._kv.block_bytes
