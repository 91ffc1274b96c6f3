"""How each family is stepped and why; the comparisons themselves, family by family, are tests/conformance."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine import Engine, EngineConfig, SequenceId, families
from mlxcel_engine.engine.families import BATCHED_FAMILIES, NOT_BATCHED, architectures, family_support
from mlxcel_engine.engine.kv import dense
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.errors import EngineError
from tests.conformance.traces import (
    EQUAL,
    RAGGED,
    TOLERANCE,
    References,
    engine_alone,
    engine_rows,
    prompt,
    solo,
    widest,
)
from tests.faults import strided_short
from tests.tiny import tiny_model

# One of a kind; the conformance matrix covers all.
NAMES = (
    "gemma2",
    "glm4",
    "granite",
    "lfm2",
    "llama",
    "llama-sliding",
    "llama3-rope",
    "mixtral",
    "olmo2",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "stablelm",
)


def force_batched(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Let the engine batch ``model`` whatever the tables say of its family."""
    monkeypatch.setattr(families, "BATCHED_FAMILIES", BATCHED_FAMILIES | architectures(model))
    monkeypatch.setattr(families, "NOT_BATCHED", {})


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_is_bitwise_generate_step(name: str) -> None:
    model = tiny_model(name)
    for length in (1, 2, 33):
        ids = prompt(length)
        assert widest({0: engine_alone(model, ids, 16)}, {0: solo(model, ids, chunk=16)}).largest == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [RAGGED, EQUAL], ids=["ragged", "equal lengths"])
def test_rows_of_a_batch_equal_solo(name: str, rows: Any) -> None:
    model = tiny_model(name)
    engine = Engine(model, EngineConfig(exact=False))
    found = widest(engine_rows(engine, rows), References(model).of(rows))
    assert found.first is None
    assert found.largest <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llama-sliding", "RotatingKVCache"),
        ("lfm2", "ArraysCache"),
        ("stablelm", "alters the keys"),
        ("gemma2", "attends by hand"),
        ("llama-dynamic-rope", "dynamic rope"),
        ("mistral3-mistral4", "latent keys"),
        ("mistral3-sliding", "sliding layers keep plain caches"),
    ],
)
def test_a_family_that_is_not_batched_says_why(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(name)
    if "sliding layers" in reason:  # the last obstacle that is asked for
        monkeypatch.setattr(families, "BATCHED_FAMILIES", BATCHED_FAMILIES | architectures(model))
    support = family_support(model)
    assert not support.batched
    assert reason in support.reason


def test_no_family_is_in_both_tables() -> None:
    assert not BATCHED_FAMILIES & set(NOT_BATCHED)


@pytest.mark.parametrize(
    ("name", "error"), [("gemma2", "did not attend"), ("phi3small", "did not attend"), ("stablelm", "alters keys")]
)
def test_a_family_that_the_view_cannot_serve_raises_rather_than_answer(
    name: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(name)
    force_batched(monkeypatch, model)
    engine = Engine(model)
    assert engine.support.batched
    with pytest.raises(EngineError, match=error):
        engine_rows(engine)


def test_several_rows_refuse_a_mask_rather_than_ignore_it() -> None:
    store = DenseKv(layers=1)
    rows = (SequenceId(0), SequenceId(1))
    for row in rows:
        store.create(row, 0, 1)
    (layer,) = store.forward(rows, 1).caches
    layer.update_and_fetch(mx.ones((2, 1, 1, 4)), mx.ones((2, 1, 1, 4)))
    with pytest.raises(EngineError, match="without a mask"):
        layer.attend(mx.ones((2, 1, 1, 4)), 1.0, mx.zeros((1, 1, 1, 1)), None)


def test_a_wrong_view_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with one row's keys read one token short, the comparison above fails."""
    monkeypatch.setattr(dense, "strided", strided_short)
    model = tiny_model("llama")
    assert not widest(engine_rows(Engine(model, EngineConfig(exact=False))), References(model).of()).close
