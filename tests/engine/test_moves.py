"""Taking steps back, keeping prefixes, moving sequences out and in: the tokens are those of a run that never did."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel_engine.engine import (
    GREEDY,
    Engine,
    EngineConfig,
    ResolvedSampling,
    SamplingConfig,
    SequenceId,
    SequenceSpec,
    StepBatch,
    resolve_sampling,
)
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.blocks import OutOfBlocksError
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.errors import EngineError
from tests.tiny import tiny_model

PROMPT = tuple(int(i) for i in np.random.default_rng(3).integers(0, 300, 37))
KINDS = [("llama", "dense"), ("llama", "paged"), ("gemma2", "dense"), ("lfm2", "dense"), ("llama-sliding", "dense")]
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": resolve_sampling(
        SamplingConfig(temperature=1.0, repeat_penalty=1.3, dry_multiplier=0.8, dry_sequence_breakers=(), seed=7)
    ),
    "mirostat": resolve_sampling(SamplingConfig(temperature=1.0, mirostat=2, seed=5)),
}


def make(name: str, storage: Storage, **config: Any) -> Engine:
    return Engine(tiny_model(name), EngineConfig(storage=storage, **config))


def opened(engine: Engine, sampling: ResolvedSampling = GREEDY, prompt: tuple[int, ...] = PROMPT) -> SequenceId:
    sequence = engine.open(SequenceSpec(prompt, sampling, chunk=16))
    for piece in engine.plan(sequence).pieces:
        engine.prefill(sequence, piece)
    return sequence


def steps(engine: Engine, sequence: SequenceId, number: int) -> list[int]:
    return [engine.step(StepBatch((sequence,))).rows[0].token for _ in range(number)]


def check(engine: Engine) -> None:
    if isinstance(engine._kv, PagedKv):
        engine._kv.check_integrity()


@pytest.mark.parametrize(("name", "storage"), KINDS)
@pytest.mark.parametrize("sampling", sorted(SAMPLINGS))
def test_steps_taken_back_and_made_again_are_the_same(name: str, storage: Storage, sampling: str) -> None:
    engine = make(name, storage)
    sequence = opened(engine, SAMPLINGS[sampling])
    expected = steps(engine, sequence, 20)
    sequence = opened(engine, SAMPLINGS[sampling])
    assert steps(engine, sequence, 9) == expected[:9]
    if name in ("lfm2", "llama-sliding"):
        with pytest.raises(EngineError, match="cannot go back by 3 tokens"):
            engine.unwind(sequence, 3)
    else:
        engine.unwind(sequence, 3)
        assert steps(engine, sequence, 2) == expected[6:8]
        engine.unwind(sequence, 8)
        assert steps(engine, sequence, 9) == expected[:9]
    assert steps(engine, sequence, 11) == expected[9:]
    check(engine)


def test_what_cannot_be_taken_back_is_refused() -> None:
    engine = make("llama", "dense")
    sequence = opened(engine)
    with pytest.raises(EngineError, match=f"sequence {sequence}: cannot take back 1 steps; 0 are remembered"):
        engine.unwind(sequence, 1)
    steps(engine, sequence, 30)
    with pytest.raises(EngineError, match="cannot take back 17 steps; 16 are remembered"):
        engine.unwind(sequence, 17)
    engine.unwind(sequence, 0)


@pytest.mark.parametrize(("name", "storage"), KINDS)
def test_a_speculative_step_that_is_taken_back_disturbs_nobody(name: str, storage: Storage) -> None:
    """Lookahead: the next step is queued for both rows, then one row turns out to have ended."""
    engine = make(name, storage)
    alone = steps(engine, opened(engine), 8)
    ends, goes_on = opened(engine, prompt=PROMPT[:5]), opened(engine)
    batch = StepBatch((ends, goes_on))
    seen = []
    pending = engine.submit(batch)
    for _ in range(3):
        ahead = engine.submit(batch)
        seen.append(engine.collect(pending).rows[1].token)
        pending = ahead
    if name not in ("lfm2", "llama-sliding"):
        engine.unwind(ends, 1)
    engine.close(ends)
    seen.append(engine.collect(pending).rows[1].token)
    assert seen + steps(engine, goes_on, 4) == alone
    check(engine)


@pytest.mark.parametrize(("name", "storage"), KINDS)
@pytest.mark.parametrize("sampling", sorted(SAMPLINGS))
def test_a_sequence_moved_out_and_in_again_goes_on_as_if_it_had_never_stopped(
    name: str, storage: Storage, sampling: str
) -> None:
    engine = make(name, storage)
    expected = steps(engine, opened(engine, SAMPLINGS[sampling]), 12)
    sequence = opened(engine, SAMPLINGS[sampling])
    first = steps(engine, sequence, 5)
    detached = engine.detach(sequence)
    assert detached.nbytes > 0
    with pytest.raises(EngineError, match="is not open"):
        engine.plan(sequence)
    other = opened(engine, prompt=PROMPT[::-1])
    steps(engine, other, 3)
    assert first + steps(engine, engine.resume(detached), 7) == expected
    check(engine)


@pytest.mark.parametrize("storage", ["dense", "paged"])
@pytest.mark.parametrize("kept", [1, 15, 16, 17, 32, 36])
def test_a_kept_prefix_is_adopted_and_only_the_rest_is_forwarded(kept: int, storage: Storage) -> None:
    engine = make("llama", storage)
    expected = steps(engine, opened(engine), 10)
    donor = opened(engine, prompt=(*PROMPT[:kept], 1, 2, 3))
    prefix = engine.snapshot(donor, kept)
    steps(engine, donor, 4)
    users = [engine.open(SequenceSpec(PROMPT, chunk=16), prefix) for _ in range(2)]
    engine.close(donor)
    for user in users:
        plan = engine.plan(user)
        assert str(plan).startswith(f"[{kept},")
        for piece in plan.pieces:
            engine.prefill(user, piece)
    batch = StepBatch(tuple(users))
    outputs = [engine.step(batch).rows for _ in range(10)]
    assert [rows[0].token for rows in outputs] == expected
    assert [rows[1].token for rows in outputs] == expected
    prefix.release()
    for user in users:
        engine.close(user)
    check(engine)
    if isinstance(engine._kv, PagedKv):
        assert engine._kv._allocator.free == engine._kv._allocator.total - sum(
            len(table.blocks) for table in engine._kv._tables.values()
        )


def test_a_state_that_has_no_prefix_is_kept_whole_or_refused() -> None:
    engine = make("lfm2", "dense")
    expected = steps(engine, opened(engine), 6)
    donor = engine.open(SequenceSpec(PROMPT, chunk=16, boundary=20))
    first, second, third = engine.plan(donor).pieces
    assert (first.stop, second.stop, third.stop) == (16, 20, 36)
    engine.prefill(donor, first)
    engine.prefill(donor, second)
    with pytest.raises(EngineError, match="only all 20 tokens can be kept, not 16"):
        engine.snapshot(donor, 16)
    prefix = engine.snapshot(donor, 20)
    engine.prefill(donor, third)
    user = engine.open(SequenceSpec(PROMPT, chunk=16), prefix)
    for piece in engine.plan(user).pieces:
        engine.prefill(user, piece)
    assert steps(engine, user, 6) == expected
    assert steps(engine, donor, 6) == expected


def test_a_prefix_of_the_whole_prompt_or_of_another_storage_is_refused_and_nothing_is_left() -> None:
    paged, dense = make("llama", "paged"), make("llama", "dense")
    donor = opened(paged)
    steps(paged, donor, 1)
    with pytest.raises(EngineError, match="37 tokens adopted for a prompt of 37"):
        paged.open(SequenceSpec(PROMPT), paged.snapshot(donor, 37))
    with pytest.raises(EngineError, match="of another storage"):
        dense.open(SequenceSpec(PROMPT), paged.snapshot(donor, 8))
    assert dense.open_sequences == 0
    assert isinstance(dense._kv, DenseKv)
    assert dense._kv._slabs == {}


def test_a_full_pool_refuses_a_step_whole_and_a_resumed_sequence_waits_for_room() -> None:
    engine = make("llama", "paged", blocks=6)
    first, second = opened(engine), opened(engine, prompt=PROMPT[:30])
    batch = StepBatch((first, second))
    outputs = [engine.step(batch).rows for _ in range(2)]

    def until_it_is_full() -> None:
        while True:
            outputs.append(engine.step(batch).rows)

    with pytest.raises(OutOfBlocksError, match="1 KV blocks needed, 0"):
        until_it_is_full()
    detached = engine.detach(second)
    done = len(outputs)
    tokens = [rows[0].token for rows in outputs] + steps(engine, first, 20 - done)
    alone = make("llama", "dense")
    assert tokens == steps(alone, opened(alone), 20)
    with pytest.raises(OutOfBlocksError):
        engine.resume(detached)
    engine.close(first)
    second = engine.resume(detached)
    tokens = [rows[1].token for rows in outputs] + steps(engine, second, 20 - done)
    assert tokens == steps(alone, opened(alone, prompt=PROMPT[:30]), 20)
    check(engine)


@pytest.mark.parametrize("name", ["gemma2", "lfm2"])
def test_a_family_that_cannot_page_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(EngineError, match=f"{name} cannot use paged KV, it runs row by row: its?"):
        make(name, "paged")


def test_a_config_that_cannot_be_is_refused() -> None:
    for settings, said in (
        ({"storage": "flat"}, "flat"),
        ({"blocks": 4}, "paged"),
        ({"storage": "paged", "blocks": 0}, "0"),
    ):
        with pytest.raises(EngineError, match=said):
            EngineConfig(**settings)


def test_dense_and_paged_give_the_same_bits_also_when_blocks_are_scattered() -> None:
    dense, paged = make("llama", "dense"), make("llama", "paged")
    spacers = [opened(paged, prompt=PROMPT[:16]) for _ in range(3)]
    rows = [(opened(dense), opened(paged))]
    paged.close(spacers[1])
    rows.append((opened(dense, prompt=PROMPT * 2), opened(paged, prompt=PROMPT * 2)))
    for _ in range(40):
        one = dense.step(StepBatch(tuple(d for d, _ in rows))).rows
        two = paged.step(StepBatch(tuple(p for _, p in rows))).rows
        for a, b in zip(one, two, strict=True):
            assert mx.array_equal(a.logprobs, b.logprobs)
    check(paged)
