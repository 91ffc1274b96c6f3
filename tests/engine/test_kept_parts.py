"""Kept KV divided and joined, room as it is taken, and sequences whose KV is made anew."""

from __future__ import annotations

import pytest

from mlxcel_engine.engine import Engine, EngineConfig, ResolvedSampling, SequenceId, SequenceSpec, StepBatch
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.errors import EngineError
from tests.conformance.traces import prompt, solo
from tests.tiny import tiny_model

IDS = prompt(41)
STORAGES: tuple[Storage, ...] = ("dense", "paged")


def prefilled(engine: Engine, ids: tuple[int, ...] = IDS, pieces: int | None = None) -> SequenceId:
    row = engine.open(SequenceSpec(ids, chunk=16))
    for piece in engine.plan(row).pieces[:pieces]:
        engine.prefill(row, piece)
    return row


def tokens(engine: Engine, row: SequenceId, steps: int) -> list[int]:
    return [engine.step(StepBatch((row,))).rows[0].token for _ in range(steps)]


@pytest.mark.parametrize("storage", STORAGES)
def test_parts_joined_are_the_whole(storage: Storage) -> None:
    engine = Engine(tiny_model("llama"), EngineConfig(storage))
    row = prefilled(engine)
    kept = engine.snapshot(row, 40)
    parts = [kept.part(0, 16), kept.part(16, 32), kept.part(32, 40)]
    assert sum(part.nbytes for part in parts) == kept.nbytes
    kept.release()
    engine.close(row)
    whole = parts[0].joined(parts[1:])
    again = engine.open(SequenceSpec(IDS), whole)
    for held in (*parts, whole):
        held.release()
    assert tokens(engine, again, 12) == solo(tiny_model("llama"), IDS)[0]
    engine.close(again)
    if isinstance(engine._kv, PagedKv):
        engine._kv.check_integrity()
        assert engine._kv.held_bytes == 0


def test_what_cannot_be_divided_or_joined_is_refused() -> None:
    kept = {}
    kinds: list[tuple[str, str, Storage]] = [
        ("copy", "llama", "dense"),
        ("blocks", "llama", "paged"),
        ("own", "lfm2", "dense"),
    ]
    for name, model, storage in kinds:
        engine = Engine(tiny_model(model), EngineConfig(storage))
        kept[name] = engine.snapshot(prefilled(engine), 40)
    with pytest.raises(EngineError, match=r"in blocks of 16, \[5,20\)"):
        kept["blocks"].part(5, 20)
    with pytest.raises(EngineError, match="behind a whole block"):
        kept["blocks"].joined([kept["blocks"]])
    with pytest.raises(EngineError, match="joined with copies"):
        kept["copy"].joined([kept["blocks"]])
    with pytest.raises(EngineError, match="only all 40 tokens"):
        kept["own"].part(0, 39)
    with pytest.raises(EngineError, match=r"of 40 tokens, \[0,41\)"):
        kept["copy"].part(0, 41)
    other = Engine(tiny_model("llama"), EngineConfig("paged"))
    foreign = other.snapshot(prefilled(other), 32)
    with pytest.raises(EngineError, match="of the same pools"):
        foreign.joined([kept["blocks"]])
    with pytest.raises(EngineError, match="cannot be joined"):
        kept["own"].joined([kept["own"]])
    assert kept["own"].part(0, 40).joined([]).tokens == 40
    for held in kept.values():
        held.release()
        with pytest.raises(EngineError, match="40 tokens of KV were released"):
            held.part(0, 40)
        with pytest.raises(EngineError, match="40 tokens of KV were released"):
            held.joined([])


@pytest.mark.parametrize("pieces", [0, 1, None])
@pytest.mark.parametrize(("model", "storage"), [("llama", "dense"), ("llama", "paged"), ("lfm2", "dense")])
def test_a_sequence_whose_kv_was_dropped_goes_on_after_it_was_made_anew(
    model: str, storage: Storage, pieces: int | None
) -> None:
    engine = Engine(tiny_model(model), EngineConfig(storage))
    row = prefilled(engine, pieces=pieces)
    steps = 5 if pieces is None else 0
    found = tokens(engine, row, steps)
    detached = engine.detach(row, keep_kv=False)
    assert (engine.open_sequences, engine.kv_usage.used, detached.nbytes) == (0, 0, 0)
    fed = (*IDS, *found)[: 40 + steps]
    with pytest.raises(EngineError, match="39 tokens given to recompute"):
        engine.recompute(detached, fed[:39])
    again = engine.recompute(detached, fed)
    for piece in engine.plan(again).pieces:
        engine.prefill(again, piece)
    found += tokens(engine, again, 12 - steps)
    assert found == solo(tiny_model(model), IDS)[0]


@pytest.mark.parametrize(("model", "storage"), [("llama", "dense"), ("llama", "paged"), ("lfm2", "dense")])
def test_a_sequence_of_one_token_has_nothing_to_make_anew(model: str, storage: Storage) -> None:
    engine = Engine(tiny_model(model), EngineConfig(storage))
    again = engine.recompute(engine.detach(engine.open(SequenceSpec(IDS[:1])), keep_kv=False), ())
    assert engine.plan(again).pieces == ()
    assert tokens(engine, again, 12) == solo(tiny_model(model), IDS[:1])[0]


@pytest.mark.parametrize(("model", "storage"), [("llama", "dense"), ("llama", "paged"), ("lfm2", "dense")])
def test_room_is_counted_in_blocks(model: str, storage: Storage) -> None:
    engine = Engine(tiny_model(model), EngineConfig(storage, 9 if storage == "paged" else None))
    assert (engine.kv_usage.used, engine.kv_usage.nbytes) == (0, 0)
    row = prefilled(engine)
    assert (engine.kv_usage.used, engine.kv_usage.total) == (3, 9 if storage == "paged" else None)
    assert 0 < engine.kv_bytes(row) <= engine.kv_usage.nbytes
    assert engine.kv_bytes(row) == engine.detach(row).nbytes or storage == "paged"


def test_ids_without_an_embedding_are_refused() -> None:
    engine = Engine(tiny_model("llama"))
    with pytest.raises(EngineError, match="token id 300 is outside the vocabulary of 300"):
        engine.open(SequenceSpec((5, 300)))
    with pytest.raises(EngineError, match="token id -1 is outside"):
        engine.open(SequenceSpec((5, 6), ResolvedSampling(forced=(7, -1))))
    detached = engine.detach(prefilled(engine, IDS[:3]), keep_kv=False)
    with pytest.raises(EngineError, match="token id 301 is outside"):
        engine.recompute(detached, (5, 301))


def test_a_sequence_comes_back_once() -> None:
    engine = Engine(tiny_model("llama"))
    detached = engine.detach(prefilled(engine))
    engine.resume(detached)
    with pytest.raises(EngineError, match="brought back once"):
        engine.recompute(detached, IDS[:40])


def test_a_pool_does_not_grow_while_enough_blocks_are_free_if_scattered() -> None:
    engine = Engine(tiny_model("llama"), EngineConfig("paged"))
    rows = [prefilled(engine, prompt(129, seed=seed)) for seed in range(6)]
    before = engine.kv_usage.nbytes
    for row in rows[::2]:
        engine.close(row)
    assert tokens(engine, prefilled(engine, prompt(321)), 4) == solo(tiny_model("llama"), prompt(321), 4)[0]
    assert engine.kv_usage.nbytes == before
