"""Attention from parts against one softmax over each row's keys, and what the counters say about the way."""

from __future__ import annotations

from random import Random

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine import SequenceId
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.engine.kv.store import KvCounters

HEADS, GROUP, WIDTH = 2, 3, 4
Store = DenseKv | PagedKv


def reference(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> np.ndarray:
    """One row in float64: queries ``[Hq, D]``, keys and values ``[Hkv, T, D]``."""
    q, k, v = (np.array(array, dtype=np.float64) for array in (queries, keys, values))
    k, v = np.repeat(k, GROUP, axis=0), np.repeat(v, GROUP, axis=0)
    scores = np.einsum("hd,htd->ht", q, k) * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(np.einsum("ht,htd->hd", weights / weights.sum(axis=-1, keepdims=True), v))


def filled(store: Store, lengths: list[int], shared: int) -> list[SequenceId]:
    """Rows of random keys and values; all begin with the same ``shared`` tokens."""
    rows: list[SequenceId] = []
    prefix = None
    for index, length in enumerate(lengths):
        row = SequenceId(index)
        store.create(row, length + shared, 4, prefix)
        if shared and prefix is None:
            write(store, row, shared)
            prefix = store.snapshot(row, shared)
        write(store, row, length)
        rows.append(row)
    return rows


def write(store: Store, row: SequenceId, tokens: int) -> None:
    forward = store.forward([row], tokens)
    forward.rows.append(0, *mx.random.normal((2, 1, HEADS, tokens, WIDTH)))
    forward.commit()


def step(store: Store, rows: list[SequenceId], sharpness: float = 1.0) -> float:
    """The largest difference of one step's attention from :func:`reference`."""
    forward = store.forward(rows, 1)
    queries = mx.random.normal((len(rows), HEADS * GROUP, 1, WIDTH)) * sharpness
    keys, values = forward.caches[0].update_and_fetch(*mx.random.normal((2, len(rows), HEADS, 1, WIDTH)))
    assert forward.caches[0].owns(keys, values)
    found = forward.caches[0].attend(queries, 0.5, None, None)
    forward.verify()
    forward.commit()
    worst = 0.0
    for index in range(len(rows)):
        k, v = forward.rows.read(0, index)
        worst = max(
            worst, np.abs(np.array(found[index, :, 0]) - reference(queries[index, :, 0], k[0], v[0], 0.5)).max()
        )
    return float(worst)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["dense", "paged"]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    shared=st.sampled_from([0, 1, 30, 128, 140]),
    long=st.sampled_from([0, 700]),
    order=st.randoms(use_true_random=False),
)
def test_parts_are_one_softmax(kind: str, lengths: list[int], shared: int, long: int, order: Random) -> None:
    store = DenseKv(1, exact=False) if kind == "dense" else PagedKv(1, exact=False)
    rows = filled(store, [lengths[0] + long, *lengths[1:]], shared)
    order.shuffle(rows)
    for _ in range(3):
        assert step(store, rows) < 1e-5


def test_large_scores_stay_finite() -> None:
    store = PagedKv(1, exact=False)
    assert step(store, filled(store, [900, 3, 3], 128), sharpness=1e3) < 1e-3


def ways(store: Store, lengths: list[int], shared: int = 0) -> KvCounters:
    rows = filled(store, lengths, shared)
    store.counters = KvCounters()
    step(store, rows)
    return store.counters


@pytest.mark.parametrize(
    ("lengths", "shared", "exact", "expected"),
    [
        ([9, 9, 9], 0, False, KvCounters(1, slices=3, grouped=3)),
        ([9, 12], 0, False, KvCounters(1, slices=2)),
        ([9, 9], 160, False, KvCounters(1, splits=2, grouped=2, shared=2)),
        ([9, 9], 32, False, KvCounters(1, slices=1, splits=1)),
        ([9, 9], 32, True, KvCounters(1, slices=1, gathers=1)),
        ([9], 0, False, KvCounters(1, slices=1)),
    ],
)
def test_counters_say_which_way_a_row_was_read(
    lengths: list[int], shared: int, exact: bool, expected: KvCounters
) -> None:
    assert ways(PagedKv(1, exact=exact), lengths, shared) == expected


def test_dense_rows_are_read_in_one_piece() -> None:
    assert ways(DenseKv(1, exact=False), [5, 5]) == KvCounters(1, slices=2)


def test_a_row_with_nan_keys_leaves_its_neighbours_alone() -> None:
    store = PagedKv(1, exact=False)
    rows = filled(store, [9, 9, 9], 0)
    forward = store.forward(rows, 1)
    keys, values = mx.ones((2, 3, HEADS, 1, WIDTH))
    keys[1] = float("nan")
    forward.caches[0].update_and_fetch(keys, values)
    found = np.array(forward.caches[0].attend(mx.ones((3, HEADS * GROUP, 1, WIDTH)), 1.0, None, None))
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_a_model_in_16_bits_is_read_row_by_row() -> None:
    store = PagedKv(1, exact=False)
    rows = [SequenceId(0), SequenceId(1)]
    for row in rows:
        store.create(row, 9, 0)
    forward = store.forward(rows, 1)
    forward.caches[0].update_and_fetch(*mx.ones((2, 2, HEADS, 1, WIDTH), dtype=mx.bfloat16))
    queries = mx.ones((2, HEADS * GROUP, 1, WIDTH), dtype=mx.bfloat16)
    assert forward.caches[0].attend(queries, 1.0, None, None).dtype == mx.bfloat16
    assert store.counters == KvCounters(1, slices=2)
