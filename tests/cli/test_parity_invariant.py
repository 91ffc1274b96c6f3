"""``parity --invariant``: rows of its own, a gate of its own that fires, and shapes that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.records.parity import ParityRecord
from tests.cli.command import one_line, parity
from tests.faults import FaultyEngine


def test_the_invariant_mode_has_rows_of_its_own_and_passes_its_gate(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    wanted = (
        "--invariant",
        "--invariant-shape",
        "3,16",
        "--expect-identical",
        "--cases",
        "greedy",
        "--json",
        str(file),
    )
    text = "two roads diverged in a wood, and I took"
    assert main(["parity", "-m", checkpoint, "-p", text, "-n", "40", *wanted]) == 0
    out, err = capsys.readouterr()
    assert "gate: passed" in err
    assert "invariant 3,16" in out
    record = ParityRecord.model_validate_json(file.read_text())
    rows = {row.right: row for row in record.rows if row.left == "engine"}
    assert {"preempted", "batch-4-first", "cache-hit-33"} <= set(rows)
    assert {(row.verdict, row.logits) for row in rows.values()} == {("identical", "bitwise")}
    assert main(["parity", "--from", str(file), "--expect-identical"]) == 0


def test_the_gate_of_the_invariant_mode_fires(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlxcel_engine.paths as paths

    real = paths.path_makers(4)
    monkeypatch.setattr(paths, "path_makers", lambda width: {**real, "engine": lambda: FaultyEngine(1.0001)})
    wanted = ("--invariant", "--expect-identical", "--cases", "greedy", "--paths", "cli,engine,dense")
    assert parity(checkpoint, *wanted) == 1
    err = capsys.readouterr().err
    assert "engine against dense: identical, but its logits are close, not bitwise" in err
    assert "cli against engine" not in err
    assert parity(checkpoint, *wanted[1:]) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--invariant", "--prefill-chunk", "16"), "--prefill-chunk does nothing beside --invariant"),
        (("--invariant-shape", "4,16"), "does nothing without --invariant"),
        (("--invariant", "--invariant-shape", "4"), "give two whole numbers, rows and tokens, as in 2,256"),
        (("--invariant", "--invariant-shape", "0,16"), "an invariant width of 0 rows; give 1 to 64"),
    ],
)
def test_shapes_that_cannot_be_are_refused(
    options: tuple[str, ...], said: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity(checkpoint, *options) == 2
    assert said in one_line(capsys.readouterr().err)
