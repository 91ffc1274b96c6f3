"""A single row that is padded to two: when that is done, and that it changes nothing but the last bits."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StepBatch, families
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.families import PAIRED_FEATURES, multiplies_faster_in_pairs
from mlxcel_engine.preload import PRELOAD
from tests.conformance.traces import prompt
from tests.engine.test_invariant import Shapes, alone, opened
from tests.tiny import tiny_model

FASTER, EXACT = EngineConfig(exact=False, invariant=False), EngineConfig(exact=True, invariant=False)


@pytest.fixture(autouse=True)
def mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PRELOAD", replace(PRELOAD, blas="mkl"))


def decode_widths(engine: Engine, rows: int) -> set[int]:
    opened_rows = tuple(opened(engine, prompt(5, seed)) for seed in range(rows))
    spy = engine._model = Shapes(engine.model)
    engine.step(StepBatch(opened_rows))
    return {shape[0] for shape in spy.seen}


@pytest.mark.parametrize(
    ("name", "config", "rows", "width"),
    [
        ("llama", FASTER, 1, 2),
        ("llama", FASTER, 3, 3),
        ("llama", EXACT, 1, 1),
        ("mixtral", FASTER, 1, 1),  # the padding would choose, and read, experts of its own
        ("gemma3_text", FASTER, 1, 1),  # on mlx-lm's own caches
    ],
)
def test_a_single_row_is_padded_where_that_is_faster(name: str, config: EngineConfig, rows: int, width: int) -> None:
    assert decode_widths(Engine(tiny_model(name), config), rows) == {width}


def test_another_library_and_another_dtype_are_not_padded_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    model.set_dtype(mx.bfloat16)
    assert decode_widths(Engine(model, FASTER), 1) == {1}
    monkeypatch.setattr(families, "PRELOAD", replace(PRELOAD, blas="openblas"))
    assert decode_widths(Engine(tiny_model("llama"), FASTER), 1) == {1}


@pytest.mark.parametrize(("features", "pairs"), [(PAIRED_FEATURES, True), (PAIRED_FEATURES + 1, False)])
def test_rows_of_many_features_are_not_padded(features: int, pairs: bool) -> None:
    model = nn.Sequential(nn.Linear(8, features), nn.Linear(features, 8))
    assert multiplies_faster_in_pairs(model) is pairs


@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_a_padded_row_is_the_row(storage: Storage) -> None:
    model = tiny_model("llama")
    expected = alone(Engine(model, EXACT), prompt(600), 20)
    found = alone(Engine(model, replace(FASTER, storage=storage)), prompt(600), 20)
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 1e-4


def test_a_padded_row_behind_a_shared_prefix_is_read_in_parts() -> None:
    model = tiny_model("llama")
    engine, exact = Engine(model, replace(FASTER, storage="paged")), Engine(model, EXACT)
    ids = prompt(160)
    row = engine.open(SequenceSpec(ids), engine.snapshot(opened(engine, ids), 128))
    for piece in engine.plan(row).pieces:
        engine.prefill(row, piece)
    other = opened(exact, ids)
    for _ in range(5):
        one, two = engine.step(StepBatch((row,))).rows[0], exact.step(StepBatch((other,))).rows[0]
        assert one.token == two.token
        assert np.abs(np.array(one.logprobs) - np.array(two.logprobs)).max() < 1e-4
    assert engine.counters.splits > 0
