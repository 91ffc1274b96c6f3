"""docs/families.md is true: complete, equal to the engine's tables, and its rows hold when they are run."""

from __future__ import annotations

import dataclasses
import pkgutil
from pathlib import Path

import mlx.core as mx
import mlx_lm.models
import pytest
from mlx_lm.utils import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING

from mlxcel_engine.engine import supports_paged_decode
from mlxcel_engine.engine.families import BATCHED_FAMILIES, NOT_BATCHED
from mlxcel_engine.engine.kv import dense, pool
from mlxcel_engine.engine.kv.groups import Span
from tests.conformance.configs import CONFIGS, PARTS, UNRUNNABLE, tiny_config
from tests.conformance.matrix import main, parse, render
from tests.conformance.measure import FamilyRow, Verdict, batch_gap, measure, proven
from tests.conformance.traces import RAGGED, References, solo
from tests.faults import strided_short
from tests.tiny import tiny_model

DOCUMENT = Path(__file__).parents[2] / "docs" / "families.md"
ROWS = parse(DOCUMENT.read_text())
BATCHED = [row.name for row in ROWS if row.stepped == "batched"]
# Run whole: each way of not being batched, and each kind of cache.
WHOLE = (
    "gemma2",
    "gpt_bigcode",
    "plamo",
    "deepseek_v3",
    "afm7",
    "llama-dynamic-rope",
    "mistral3-sliding",
    "cohere2",
    "minimax_m3_vl",
    "mamba2",
    "lfm2-vl",
    "deepseek_v41",
)


def module_of(name: str) -> str:
    """The module of mlx_lm.models that a registry entry builds from, by mlx-lm's own tables."""
    config = tiny_config(name)
    model_type = config["model_type"]
    for architecture in config.get("architectures", ()):
        if (model_type, architecture) in MODEL_ARCHITECTURE_REMAPPING:
            return str(MODEL_ARCHITECTURE_REMAPPING[model_type, architecture])
    return str(MODEL_REMAPPING.get(model_type, model_type))


def test_every_module_of_mlx_lm_has_a_row_or_a_reason() -> None:
    modules = {module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)}
    assert {module_of(name) for name in CONFIGS} | set(UNRUNNABLE) | PARTS == modules


def test_the_document_has_every_row_and_every_reason() -> None:
    assert [row.name for row in ROWS] == list(CONFIGS)
    text = DOCUMENT.read_text()
    assert all(f"`{name}`: {entry.reason}" in text for name, entry in UNRUNNABLE.items())


def test_the_engine_is_right_in_every_row() -> None:
    assert [row.name for row in ROWS if not row.right] == []


def test_the_batched_families_are_the_proven_ones() -> None:
    assert proven(ROWS) == BATCHED_FAMILIES


def test_every_family_on_plain_caches_that_is_not_batched_has_its_reason() -> None:
    failed = [row for row in ROWS if row.view.word in ("wrong", "raises")]
    assert all("not proven" not in row.stepped for row in failed)
    assert {row.architectures[0] for row in failed} >= set(NOT_BATCHED)


@pytest.mark.parametrize("name", BATCHED)
def test_a_batched_row_is_right_over_dense_and_paged_kv(name: str) -> None:
    model = tiny_model(name)
    assert supports_paged_decode(model).ok
    references = References(model)
    assert batch_gap(references, "dense", RAGGED, exact=True).close
    assert batch_gap(references, "dense", RAGGED, exact=False).close
    assert batch_gap(references, "paged", RAGGED, exact=False).close


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_row_is_what_is_measured(name: str) -> None:
    (recorded,) = [row for row in ROWS if row.name == name]
    assert measure(name).verdicts == recorded.verdicts


@pytest.mark.parametrize("name", sorted(UNRUNNABLE))
def test_an_unrunnable_family_fails_as_its_reason_says(name: str) -> None:
    if mx.metal.is_available() and "Metal" in UNRUNNABLE[name].error:
        pytest.skip("the reason is a missing Metal, and this machine has it: the family may run here")
    with pytest.raises((RuntimeError, ValueError), match=UNRUNNABLE[name].error):
        solo(tiny_model(name), RAGGED[1].prompt, steps=2, chunk=8)


def test_a_document_reads_back_as_it_was_written() -> None:
    raised = Verdict("raises", "ValueError: shapes (1,2) and (3,4)")
    row = FamilyRow(
        "a-b",
        ("a", "b"),
        "row by row: why",
        Verdict("right", "bitwise"),
        raised,
        Verdict("n/a", "it (b) is c"),
        Verdict("n/a"),
        raised,
    )
    assert parse(render([row])) == [row]


def test_a_wrong_view_is_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: keys and values of the token before make the row wrong and the family unproven."""
    read = dense.Slab.read

    def shifted(self: dense.Slab, layer: int, length: int) -> tuple[mx.array, mx.array]:
        keys, values = read(self, layer, length)
        return mx.roll(keys, length > 8, 2), mx.roll(values, length > 8, 2)

    monkeypatch.setattr(dense.Slab, "read", shifted)
    row = measure("llama")
    assert row.verdicts == ("batched", "wrong", "wrong", "right", "wrong", "right")
    assert not row.right
    assert proven([row]) == frozenset()


def test_a_wrong_pool_is_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a paged row of more than a block read with its keys one token off."""
    read = pool.Pool.read

    def shifted(self: pool.Pool, spans: list[Span]) -> tuple[mx.array, mx.array]:
        keys, values = read(self, spans)
        return mx.roll(keys, keys.shape[2] > 16, 2), values

    monkeypatch.setattr(pool.Pool, "read", shifted)
    row = measure("llama")
    assert row.verdicts == ("batched", "right", "right", "wrong", "right", "right")
    assert not row.right


def test_a_wrong_read_of_several_rows_is_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what several rows read together is one token short."""
    monkeypatch.setattr(dense, "strided", strided_short)
    monkeypatch.setattr(pool, "strided", strided_short)
    row = measure("llama")
    assert row.verdicts == ("batched", "right", "wrong", "wrong", "wrong", "right")


def test_a_wrong_wrapper_is_the_fault_of_what_it_wraps() -> None:
    right, wrong = Verdict("right"), Verdict("wrong")
    rows = [
        FamilyRow("inner", ("inner",), "", right, right, right, wrong, right),
        FamilyRow("outer-a", ("outer", "good"), "", right, right, right, right, right),
        FamilyRow("outer-b", ("outer", "inner"), "", right, right, right, wrong, right),
    ]
    assert proven(rows) == {"outer"}
    assert proven([*rows[1:]]) == frozenset()


def test_a_family_that_cannot_be_built_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CONFIGS, "broken", {"model_type": "llama", "num_attention_heads": 0})
    assert main(["broken", "llama"]) == 1
    first, second = parse(capsys.readouterr().out)
    assert (first.name, first.stepped, first.alone.word) == ("broken", "not built", "raises")
    assert dataclasses.replace(second, name="") != first
    assert second.alone.word == "right"
