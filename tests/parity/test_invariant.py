"""Parity in the invariant mode: every path of ours is bitwise what the engine alone is, and a fault is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.engine import FixedShapes
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.pairs import choose_pairs, is_ours
from mlxcel_engine.paths import invariant_makers, path_makers
from mlxcel_engine.paths.scheduler import SchedulerPath
from tests.faults import row, run
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.paths import DecodePath
    from mlxcel_engine.records.parity import ParityRecord

SHAPES = FixedShapes(3, 16)
TEXT = "two roads diverged in a wood, and I took"
OWN = ("gemma3", "lfm2")


def run_invariant(name: str, paths: list[DecodePath] | None = None, n: int = 40) -> ParityRecord:
    makers = path_makers(4) | invariant_makers(SHAPES)
    chosen = [make() for make in makers.values()] if paths is None else paths
    return run(tiny_loaded(name), chosen, text=TEXT, n=n, chunk=SHAPES.chunk, invariant=SHAPES)


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3", "lfm2"])
def test_every_row_of_ours_is_bitwise(name: str) -> None:
    record = run_invariant(name)
    assert record.config.invariant == "3,16"
    assert judge(record.rows, invariant=True).failures == ()
    ours = [row for row in record.rows if row.left == "engine"]
    missing = {row.right: row.reason for row in ours if row.verdict == "n/a"}
    paged = {"paged", "paged-batch-4"} if name in OWN else set()
    assert set(missing) == paged, missing
    assert {(row.verdict, row.logits) for row in ours if row.verdict != "n/a"} == {("identical", "bitwise")}
    assert len(ours) == len(invariant_makers(SHAPES)) + 4


def test_the_evidence_shows_what_each_path_did() -> None:
    record = run_invariant("llama")
    seen = {stream.path: stream.evidence for stream in record.streams}
    adopted = {path: evidence.adopted for path, evidence in seen.items() if evidence and "hit-" in path}
    assert adopted == {f"cache-hit-{n}": n - n % 16 for n in (15, 16, 17, 31, 32, 33)}
    engine, moved = seen["engine"], seen["preempted"]
    assert engine is not None
    assert moved is not None
    assert engine.partition == [(0, 16), (16, 32), (32, 40)]
    assert (engine.chunk, engine.widest_batch) == (16, 1)
    assert (moved.decode_forwards, moved.widest_batch) == (39, 2)
    first, cancelled = seen["batch-4-first"], seen["batch-4-cancelled"]
    assert first is not None
    assert cancelled is not None
    assert first.widest_batch == cancelled.widest_batch == 4
    assert first.notes == ["3 of 3 neighbours joined, 0 left before it ended"]
    assert cancelled.notes == ["3 of 3 neighbours joined, 3 left before it ended"]


def test_a_wrong_adoption_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SchedulerPath("cache-hit-17", cache="primed", history=17)
    monkeypatch.setattr("mlxcel_engine.paths.scheduler._CACHE_BYTES", 1)
    found = row(run_invariant("llama", [path_makers(4)["engine"](), path]), "engine", "cache-hit-17")
    assert (found.verdict, found.reason) == (
        "invalid",
        "cache-hit-17: it adopted 0 tokens, not the whole chunks of 17",
    )


def test_the_gate_wants_bits_of_ours_and_lets_others_part_at_a_near_tie() -> None:
    record = run(tiny_loaded(), [path_makers(4)[name]() for name in ("engine", "batch-4")], text=TEXT, n=40)
    (found,) = record.rows
    assert (found.verdict, found.logits) == ("identical", "close")  # the normal mode
    assert judge([found]).exit_code == 0
    assert judge([found], invariant=True).failures == (
        "greedy, p: engine against batch-4: identical, but its logits are close, not bitwise",
    )
    near = found.model_copy(update={"verdict": "near-tie", "index": 3})
    assert judge([near], invariant=True).exit_code == 1
    assert judge([near.model_copy(update={"left": "cli"})], invariant=True).exit_code == 0
    assert judge([near.model_copy(update={"left": "cli", "verdict": "diverged"})], invariant=True).exit_code == 1


def test_our_paths_are_held_against_the_engine() -> None:
    names = ["cli", "mlx-server", "engine", "dense", "batch-4", "mlx-batch-4", "preempted", "cache-hit-17"]
    assert choose_pairs(names, invariant=True) == [
        ("cli", "mlx-server"),
        ("cli", "engine"),
        ("engine", "dense"),
        ("engine", "batch-4"),
        ("cli", "mlx-batch-4"),
        ("engine", "preempted"),
        ("engine", "cache-hit-17"),
    ]
    assert not is_ours("mlx-batch-4")
    assert is_ours("paged-batch-5")
    assert is_ours("batch-5-first")
