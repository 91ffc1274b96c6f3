"""Dense and paged storage against plain lists: what is read is what was appended, whatever happened in between."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxcel_engine.engine import SequenceId
from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS, OutOfBlocksError
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.engine.kv.store import DetachedKv
from mlxcel_engine.errors import EngineError

LAYERS, HEADS, WIDTH = 2, 2, 4
Store = DenseKv | PagedKv


def block_of(tokens: list[list[int]], layer: int) -> tuple[mx.array, mx.array]:
    """Keys and values ``[B, H, L, D]`` that tell token, layer and head apart."""
    values = np.array(tokens, dtype=np.float32)[:, None, :, None] + 1000.0 * layer
    keys = values + np.arange(HEADS, dtype=np.float32)[None, :, None, None] * 100_000 + np.zeros(WIDTH, np.float32)
    return mx.array(keys), mx.array(-keys)


def append(store: Store, rows: list[SequenceId], tokens: list[list[int]], commit: bool = True) -> None:
    forward = store.forward(rows, len(tokens[0]))
    for layer in range(LAYERS):
        forward.rows.append(layer, *block_of(tokens, layer))
    if commit:
        forward.commit()


def held(store: Store, sequence: SequenceId) -> list[list[int]]:
    """The tokens that each layer reads back, checked in keys and values alike."""
    found = []
    forward = store.forward([sequence], 0)
    for layer in range(LAYERS):
        keys, values = forward.rows.read(layer, 0)
        assert mx.array_equal(keys, -values)
        assert mx.array_equal(keys[:, 1] - keys[:, 0], mx.full(keys[:, 0].shape, 100_000.0))
        found.append([int(t) for t in np.array(keys[0, 0, :, 0]) - 1000 * layer])
    return found


@pytest.fixture(params=["dense", "paged", "paged fixed"])
def store(request: pytest.FixtureRequest) -> Store:
    kinds: dict[str, Any] = {"dense": lambda: DenseKv(LAYERS), "paged": lambda: PagedKv(LAYERS)}
    made: Store = kinds.get(request.param, lambda: PagedKv(LAYERS, blocks=64))()
    return made


A, B, C = SequenceId(1), SequenceId(2), SequenceId(3)


def test_an_uncommitted_forward_changes_nothing(store: Store) -> None:
    store.create(A, 40, 0)
    append(store, [A], [[1, 2, 3]])
    append(store, [A], [[7, 7]], commit=False)
    assert store.length(A) == 3
    append(store, [A], [[4]])
    assert held(store, A) == [[1, 2, 3, 4]] * LAYERS


@pytest.mark.parametrize("tokens", [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 1, 3 * BLOCK_TOKENS])
def test_a_snapshot_is_unmoved_by_both_sides_going_on(store: Store, tokens: int) -> None:
    prefix = list(range(tokens))
    store.create(A, tokens, 5)
    append(store, [A], [[*prefix]])
    kept = store.snapshot(A, tokens)
    store.create(B, tokens, 5, kept)
    append(store, [A, B], [[500], [600]])
    store.create(C, tokens, 5, kept)
    assert held(store, A) == [[*prefix, 500]] * LAYERS
    assert held(store, B) == [[*prefix, 600]] * LAYERS
    assert held(store, C) == [prefix] * LAYERS
    kept.release()
    for sequence in (A, B, C):
        store.drop(sequence)
    if isinstance(store, PagedKv):
        store.check_integrity()
        assert store.held_bytes == 0


def test_a_shared_prefix_costs_its_blocks_once_and_waste_is_less_than_a_block() -> None:
    store = PagedKv(LAYERS)
    prefix = list(range(1024))
    rows = [SequenceId(i) for i in range(8)]
    store.create(rows[0], 1024, 16)
    append(store, rows[:1], [prefix])
    one_prefix = store.held_bytes
    kept = store.snapshot(rows[0], 1024)
    for row in rows[1:]:
        store.create(row, 1024, 16, kept)
    assert store.held_bytes == one_prefix
    for step in range(16):
        append(store, rows, [[2000 + 100 * i + step] for i in range(8)])
    assert store.held_bytes <= 1.35 * (one_prefix + store.block_bytes)
    for i, row in enumerate(rows):
        assert held(store, row)[1] == [*prefix, *(2000 + 100 * i + step for step in range(16))]


def test_what_is_not_there_is_refused(store: Store) -> None:
    store.create(A, 4, 0)
    append(store, [A], [[1, 2]])
    for call in (store.trim, store.snapshot):
        with pytest.raises(EngineError, match="sequence 1: 3 tokens asked for, 2 held"):
            call(A, 3)
    kept = store.snapshot(A, 2)
    with pytest.raises(KeyError):
        store.length(B)
    other = DenseKv(LAYERS) if isinstance(store, PagedKv) else PagedKv(LAYERS)
    if isinstance(store, PagedKv):
        with pytest.raises(EngineError, match="of another storage"):
            other.create(A, 4, 0, kept)
        with pytest.raises(KeyError):
            other.length(A)


def test_a_full_pool_refuses_the_whole_forward_and_goes_on_when_there_is_room() -> None:
    store = PagedKv(LAYERS, blocks=3)
    for sequence in (A, B):
        store.create(sequence, BLOCK_TOKENS, 0)
        append(store, [sequence], [list(range(BLOCK_TOKENS))])
    with pytest.raises(OutOfBlocksError, match="2 KV blocks needed, 1 of 3 free"):
        append(store, [A, B], [[1], [2]])
    store.check_integrity()
    assert (store.length(A), store.length(B)) == (BLOCK_TOKENS, BLOCK_TOKENS)
    detached = store.detach(B)
    append(store, [A], [[1]])
    store.create(C, 1, 0)
    with pytest.raises(OutOfBlocksError):
        append(store, [C], [list(range(BLOCK_TOKENS + 1))])
    store.drop(C)
    store.create(C, 1, 0, detached)
    assert held(store, C) == [list(range(BLOCK_TOKENS))] * LAYERS


def test_kv_that_was_released_cannot_be_adopted(store: Store) -> None:
    store.create(A, 20, 0)
    append(store, [A], [list(range(20))])
    kept, moved = store.snapshot(A, 20), store.detach(A)
    for gone in (kept, moved):
        gone.release()
        with pytest.raises(EngineError, match="KV that was released"):
            store.create(B, 20, 0, gone)
        with pytest.raises(KeyError):
            store.length(B)


class Life(RuleBasedStateMachine):
    """Sequences that are opened, grown, trimmed, copied, moved out and dropped, beside a list for each."""

    @initialize(kind=st.sampled_from(["dense", "paged", "fixed"]))
    def begin(self, kind: str) -> None:
        self.store: Store = DenseKv(LAYERS) if kind == "dense" else PagedKv(LAYERS, 24 if kind == "fixed" else None)
        self.live: dict[SequenceId, list[int]] = {}
        self.kept: list[tuple[Any, list[int]]] = []
        self.next = 0

    def fresh(self, tokens: int, prefix: DetachedKv | None = None) -> SequenceId:
        self.next += 1
        sequence = SequenceId(self.next)
        self.store.create(sequence, tokens, 8, prefix)
        self.live[sequence] = []
        return sequence

    @precondition(lambda self: len(self.live) < 5)
    @rule(tokens=st.integers(1, 40))
    def open(self, tokens: int) -> None:
        self.grow_by([self.fresh(tokens)], tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(1, 20))
    def grow_one(self, data: st.DataObject, tokens: int) -> None:
        self.grow_by([data.draw(st.sampled_from(sorted(self.live)))], tokens)

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        ready = sorted(s for s, tokens in self.live.items() if tokens)
        self.grow_by(data.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True)), 1)

    def grow_by(self, rows: list[SequenceId], tokens: int) -> None:
        self.next += 1
        new = [[(self.next * 31 + 7 * i + t) % 900 for t in range(tokens)] for i in range(len(rows))]
        try:
            append(self.store, rows, new)
        except OutOfBlocksError:
            return
        for row, values in zip(rows, new, strict=True):
            self.live[row] += values

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.live)))
        tokens = data.draw(st.integers(0, len(self.live[sequence])))
        self.store.trim(sequence, tokens)
        del self.live[sequence][len(self.live[sequence]) - tokens :]

    @precondition(lambda self: any(self.live.values()) and len(self.kept) < 4)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(s for s, tokens in self.live.items() if tokens)))
        tokens = data.draw(st.integers(1, len(self.live[sequence])))
        self.kept.append((self.store.snapshot(sequence, tokens), self.live[sequence][:tokens]))

    @precondition(lambda self: any(self.live.values()) and len(self.kept) < 4)
    @rule(data=st.data())
    def move_out(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(s for s, tokens in self.live.items() if tokens)))
        self.kept.append((self.store.detach(sequence), self.live.pop(sequence)))

    @precondition(lambda self: self.kept and len(self.live) < 5)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        kept, tokens = data.draw(st.sampled_from(self.kept))
        try:
            sequence = self.fresh(len(tokens), kept)
        except OutOfBlocksError:
            return
        self.live[sequence] = list(tokens)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        kept, _ = self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))
        kept.release()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.live)))
        self.store.drop(sequence)
        del self.live[sequence]

    @invariant()
    def everyone_reads_what_was_appended(self) -> None:
        for sequence, tokens in getattr(self, "live", {}).items():
            assert self.store.length(sequence) == len(tokens)
            if tokens:
                assert held(self.store, sequence) == [tokens] * LAYERS
        store = getattr(self, "store", None)
        if isinstance(store, PagedKv):
            store.check_integrity()


Life.TestCase.settings = settings(max_examples=25, stateful_step_count=40, suppress_health_check=list(HealthCheck))
TestLife = Life.TestCase
