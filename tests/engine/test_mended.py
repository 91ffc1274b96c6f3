"""Faults that were found once, each as short as it gets."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel_engine.engine import Engine, EngineConfig, FixedShapes, SequenceId, SequenceSpec, StepBatch
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.engine.kv.store import DetachedKv
from mlxcel_engine.errors import EngineError
from tests.tiny import tiny_model

PROMPT = tuple(range(5, 42))
both = pytest.mark.parametrize("storage", ["dense", "paged"])


def make(storage: Storage, name: str = "llama", blocks: int | None = None) -> Engine:
    return Engine(tiny_model(name), EngineConfig(storage, blocks))


def opened(engine: Engine, prompt: tuple[int, ...] = PROMPT, prefix: DetachedKv | None = None) -> SequenceId:
    sequence = engine.open(SequenceSpec(prompt, chunk=16), prefix)
    for piece in engine.plan(sequence).pieces:
        engine.prefill(sequence, piece)
    return sequence


def steps(engine: Engine, sequence: SequenceId, number: int) -> list[int]:
    return [engine.step(StepBatch((sequence,))).rows[0].token for _ in range(number)]


@both
@pytest.mark.parametrize("beside", [False, True])
def test_a_sequence_without_kv_moves_out_and_in(storage: Storage, beside: bool) -> None:
    """A prompt of one token before its first step, or any prompt before its prefill: preempted right after it joined.

    Paged, beside another row, it is ``concatenate`` of no arrays instead of the pool's KeyError.
    """
    engine = make(storage)
    if beside:
        opened(engine)
    expected = steps(engine, opened(engine, (7,)), 3)
    engine = make(storage)
    if beside:
        opened(engine)
    assert steps(engine, engine.resume(engine.detach(opened(engine, (7,)))), 3) == expected


def test_a_prefix_of_no_tokens_can_be_kept_before_the_prefill() -> None:
    engine = make("dense")
    assert engine.snapshot(engine.open(SequenceSpec(PROMPT)), 0).tokens == 0


@both
def test_a_model_with_layers_that_hold_no_kv_moves_out_and_in(storage: Storage) -> None:
    engine = make(storage, "nemotron-nas")
    expected = steps(engine, opened(engine), 4)
    assert steps(engine, engine.resume(engine.detach(opened(engine))), 4) == expected


@both
def test_a_model_with_layers_that_hold_no_kv_keeps_a_prefix(storage: Storage) -> None:
    engine = make(storage, "nemotron-nas")
    donor = opened(engine)
    prefix = engine.snapshot(donor, 20)
    assert steps(engine, opened(engine, prefix=prefix), 4) == steps(engine, donor, 4)


def test_a_copy_on_write_that_fails_leaves_the_books_right(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make("paged")
    donor = opened(engine)
    engine.snapshot(donor, 36)
    monkeypatch.setattr(PagedKv, "_copy_block", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.step(StepBatch((donor,)))
    assert isinstance(engine._kv, PagedKv)
    engine._kv.check_integrity()


@both
def test_a_sequence_is_resumed_once(storage: Storage) -> None:
    engine = make(storage)
    detached = engine.detach(opened(engine))
    engine.resume(detached)
    with pytest.raises(EngineError):
        engine.resume(detached)


@both
def test_a_released_prefix_is_not_adopted(storage: Storage) -> None:
    engine = make(storage)
    donor = opened(engine)
    prefix = engine.snapshot(donor, 20)
    prefix.release()
    engine.close(donor)
    opened(engine, PROMPT[::-1])  # paged: takes the blocks
    with pytest.raises(EngineError):
        engine.open(SequenceSpec(PROMPT), prefix)


def test_two_rows_that_share_a_last_block_need_one_copy() -> None:
    engine = make("paged", blocks=3)
    first = opened(engine, PROMPT[:20])
    prefix = engine.snapshot(first, 19)
    second = opened(engine, PROMPT[:20], prefix)
    prefix.release()
    engine.step(StepBatch((first, second)))  # one block is free, and one is enough


def test_a_reserve_is_a_hint_that_costs_no_memory() -> None:
    engine = make("paged")
    sequence = engine.open(SequenceSpec(PROMPT, reserve=100_000))
    engine.prefill(sequence, engine.plan(sequence).pieces[0])
    assert sum(array.nbytes for array in engine._kv.arrays(sequence)) < 2**20


def test_a_cache_that_threw_its_first_keys_away_refuses_to_go_back() -> None:
    """llama4's chunked caches say that they can be trimmed, and take back fewer tokens than the other layers do."""
    engine = make("dense", "llama4")
    sequence = opened(engine, PROMPT[:5])
    steps(engine, sequence, 2)
    engine.unwind(sequence, 2)
    expected = steps(engine, sequence, 14)
    with pytest.raises(EngineError, match="ChunkedKVCache cannot go back by 4 tokens"):
        engine.unwind(sequence, 4)
    fresh = make("dense", "llama4")
    assert steps(fresh, opened(fresh, PROMPT[:5]), 14) == expected


def test_a_prompt_given_as_a_list_is_the_sequences_own() -> None:
    ids: Any = [1, 2, 3]
    spec = SequenceSpec(ids)
    ids.append(4)
    assert spec.prompt == (1, 2, 3)


@pytest.mark.parametrize(
    "wrong", [{"exact": "no"}, {"invariant": (4, 64)}, {"invariant": 1}], ids=["exact", "a tuple", "a number"]
)
def test_a_config_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=f"{next(iter(wrong))}=.*: give"):
        EngineConfig(**wrong)


@pytest.mark.parametrize("wrong", [2.5, True])
def test_shapes_are_whole_numbers(wrong: Any) -> None:
    with pytest.raises(EngineError, match="whole numbers"):
        FixedShapes(wrong, 8)
