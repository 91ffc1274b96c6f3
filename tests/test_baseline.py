"""The baseline's driver over a fake bench: what it runs, goes on with, never repeats; its page is the data's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import baseline, baseline_page
from benchmarks.baseline_page import finding, read_rounds, render, threshold_text
from benchmarks.cells import CELLS, ParityCell, RoundsCell, command_line
from mlxcel_engine.cli.main import main as mlxcel_engine
from mlxcel_engine.rounds.journal import read_journal
from mlxcel_engine.rounds.process import Finished, run_process
from tests.loaded import write_checkpoint
from tests.rounds.fakes import FakeHost, install_fake_bench

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "benchmark_results"
ARMS = {"cli": "--path cli", "server": "--path server ENV:FAKE_SPEED=90"}
ROUNDS = RoundsCell("paths-256", "One stream", 1, ARMS, 256, tokens=32, null_every_arm=True)


class Runner:
    """Runs each command in this process and remembers it."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, words: Sequence[str]) -> int:
        self.ran.append(words[0])
        return mlxcel_engine(words)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Two cells in the place of all, parity on a tiny checkpoint and rounds on the fake bench; a quiet host."""
    model, python = str(write_checkpoint(tmp_path / "tiny")), str(install_fake_bench(tmp_path))
    parity = ParityCell("parity", "Tokens", 1, ("--all-pairs", "-n", "4", "--paths", "cli,engine"), model)
    for module in (baseline, baseline_page):
        monkeypatch.setattr(module, "CELLS", [parity, ROUNDS])

    def fake(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Finished:
        return run_process([python, *command[1:]], environment, timeout_s)

    monkeypatch.setattr("mlxcel_engine.rounds.run.run_process", fake)
    monkeypatch.setattr("mlxcel_engine.cli.rounds.ThisHost", FakeHost)
    return Runner()


def make(folder: Path, runner: Runner, *options: str) -> int:
    return baseline.main(["--out", str(folder), *options], runner)


def test_it_measures_what_is_missing_and_run_again_nothing(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "base"
    assert make(folder, runner, "--only", "parity") == 0
    assert runner.ran == ["parity"]
    assert "Not measured yet." in (tmp_path / "base.md").read_text()
    assert make(folder, runner) == 0
    assert runner.ran == ["parity", "rounds"]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    page = (tmp_path / "base.md").read_text()
    assert make(folder, runner) == 0
    assert runner.ran == ["parity", "rounds"]
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert (tmp_path / "base.md").read_text() == page == render(folder)
    assert "Not measured yet." not in page
    assert str(tmp_path) not in page.replace(str(tmp_path / "tiny"), "")
    assert sorted(before) == ["parity.json", "paths-256.jsonl", "wall.json"]
    capsys.readouterr()
    assert make(folder, runner, "--list") == 0
    assert "missing: about 0 minutes" in capsys.readouterr().out


def test_a_cell_that_was_cut_short_goes_on(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    assert make(folder, runner, "--only", "paths-256") == 0
    file = folder / "paths-256.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    kept = "".join(lines[:9])
    file.write_text(kept + lines[9][:40])
    assert not ROUNDS.done(file)
    assert read_rounds(folder, ROUNDS) is None
    assert make(folder, runner, "--only", "paths-256") == 0
    assert file.read_text().startswith(kept)
    assert len(read_journal(str(file)).runs) == 20


def test_a_command_that_fails_is_named_and_the_others_go_on(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def failing(words: Sequence[str]) -> int:
        ran.append(words[0])
        return 3

    assert baseline.main(["--out", str(tmp_path / "base")], failing) == 3
    assert ran == ["parity", "rounds"]
    assert "error: failed: parity, paths-256" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["", None])
def test_a_parity_record_that_was_cut_short_is_made_again(left: str | None, runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    assert make(folder, runner, "--only", "parity") == 0
    file = folder / "parity.json"
    whole, part = '"complete": true', '"complete": false'
    assert whole in file.read_text()
    file.write_text(file.read_text().replace(whole, part) if left is None else left)
    assert make(folder, runner, "--only", "parity") == 0
    assert runner.ran == ["parity", "parity"]
    assert whole in file.read_text()
    file.write_text("{}")
    assert make(folder, runner) == 2


def test_an_interrupted_cell_is_counted_and_gone_on_with(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: Sequence[str]) -> int:
        raise KeyboardInterrupt

    folder = tmp_path / "base"
    assert baseline.main(["--out", str(folder), "--only", "parity"], interrupted) == 130
    assert "error: interrupted" in capsys.readouterr().err
    assert list(json.loads((folder / "wall.json").read_text())) == ["parity"]
    assert make(folder, runner) == 0


def test_a_file_of_another_command_is_refused_and_kept(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "base"
    assert make(folder, runner, "--only", "paths-256") == 0
    before = (folder / "paths-256.jsonl").read_bytes()
    other = RoundsCell("paths-256", "Other", 1, ARMS, 512)
    for module in (baseline, baseline_page):
        monkeypatch.setattr(module, "CELLS", [other])
    assert make(folder, runner) == 2
    assert "was made by another command than cell paths-256" in capsys.readouterr().err
    assert (folder / "paths-256.jsonl").read_bytes() == before


def test_the_figures_of_the_page_are_those_of_the_data(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    assert make(folder, runner, "--only", "paths-256") == 0
    runs = [json.loads(line) for line in (folder / "paths-256.jsonl").read_text().splitlines()[1:]]
    speed = {(run["round"], run["arm"], run["null"]): run["lines"][0]["rows"][0]["decode_tok_s"] for run in runs}
    deltas = [100 * (speed[turn, "server", False] / speed[turn, "cli", False] - 1) for turn in range(5)]
    nulls = [100 * (speed[turn, arm, True] / speed[turn, arm, False] - 1) for turn in range(5) for arm in ARMS]
    page = (tmp_path / "base.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| paths-256 | server | cli | decode | 256 |"))
    median, span, _, n, verdict = [cell.strip() for cell in row.split("|")[6:11]]
    assert median == f"{np.median(deltas):+.1f} %"
    assert span == f"{min(deltas):+.1f} to {max(deltas):+.1f}"
    assert (n, verdict) == ("5", "slower")
    (said,) = re.findall(r"decode ([\d.]+) %, TTFT", page)
    assert float(said) == np.ceil(max(map(abs, nulls)) / 0.5) * 0.5
    record = read_rounds(folder, ROUNDS)
    assert record is not None
    assert said in threshold_text(record)
    assert finding(record.rows[0]) == (f"server against cli, decode of server at 256: {median} ({span}, n=5), slower")
    assert np.median([speed[turn, "cli", False] for turn in range(5)]).round(2).astype(str) in page


def test_the_cells_are_those_that_were_asked_for() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    for cell in CELLS:
        words = shlex.split(command_line(cell))
        assert words[:2] == ["mlxcel-engine", "parity" if isinstance(cell, ParityCell) else "rounds"]
        if isinstance(cell, RoundsCell):
            assert "--hostgate" in words
            assert "--resume" in words
            assert cell.config.rounds == (
                1 if "once" in cell.name else 3 if "paths" in cell.name and cell.ctx > 256 else 5
            )
            assert cell.config.null_every_arm == (cell.name.endswith("paths-256"))
        if "synthetic:" in words[3]:
            assert cell.trained is not None
            assert cell.trained in command_line(cell, cell.trained)


@pytest.mark.parametrize("page", sorted(RESULTS.glob("unified-engine-baseline-*.md")), ids=lambda page: page.stem)
def test_a_committed_page_is_that_of_its_data(page: Path) -> None:
    assert render(page.with_suffix("")) == page.read_text()
