"""When the gate of ``rounds`` fires, passes or cannot tell, and what a busy host leaves, over a fake bench."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.rounds.journal import read_journal
from tests.cli.command import one_line, rounds_arguments
from tests.rounds.fakes import FakeHost, state

if TYPE_CHECKING:
    from mlxcel_engine.records.rounds import HostState

pytestmark = pytest.mark.usefixtures("host")


def test_the_gate_fires_on_an_arm_that_is_slower(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(rounds_arguments(fake, tmp_path, "--gate", b="ENV:FAKE_SPEED=95")) == 1
    out, err = capsys.readouterr()
    assert "slower" in out
    assert re.search(r"gate: b, engine at 256 tokens: -[45]\.\d % decode speed", err)
    saved = ["rounds", "--from", str(tmp_path / "r.jsonl")]
    assert main(saved) == 0
    assert main([*saved, "--gate", "--threshold", "10"]) == 0
    assert "gate: passed, 1 comparisons" in capsys.readouterr().err


def test_a_regression_comes_before_failed_runs_which_are_named_all_the_same(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = rounds_arguments(fake, tmp_path, b="ENV:FAKE_SPEED=90 ENV:FAKE_MODE=partial", rounds=2)
    assert main(command) == 3
    assert "2 of 6 runs failed; the first: b, round 1: crashed" in one_line(capsys.readouterr().err)
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate", "--threshold", "2"]) == 1
    err = capsys.readouterr().err
    assert "gate: b, engine at 256 tokens: -" in err
    assert "warning: 2 of 6 runs failed; the first: b, round 1: crashed" in err


def test_a_host_that_is_never_quiet_lets_nothing_pass_and_blames_nobody(
    fake: str, tmp_path: Path, host: FakeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    host.during = [state(others_cpu=1.0)]
    assert main(rounds_arguments(fake, tmp_path, "--gate", b="ENV:FAKE_SPEED=95")) == 3
    assert "gate: b, engine at 256 tokens: of 5 pairs none counts" in capsys.readouterr().err
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate", "--threshold", "2"]) == 3


def test_the_gate_passes_equal_arms_and_can_ask_for_equal_tokens(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(rounds_arguments(fake, tmp_path, "--gate", "--expect-same-tokens", b="ENV:FAKE_TOKENS=other")) == 1
    out, err = capsys.readouterr()
    assert "they do not generate the same tokens" in out
    assert "gate: b, engine at 256 tokens: it does not generate the tokens of a" in err
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate"]) == 0


def test_nothing_measured_is_never_a_pass(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = "ENV:FAKE_MODE=crash"
    assert main(rounds_arguments(fake, tmp_path, "--gate", a=failing, b=failing, rounds=1)) == 3
    assert "3 of 3 runs failed" in one_line(capsys.readouterr().err)
    header = (tmp_path / "r.jsonl").read_text().splitlines()[0]
    (tmp_path / "bare.jsonl").write_text(header + "\n")
    assert main(["rounds", "--from", str(tmp_path / "bare.jsonl")]) == 3
    assert "nothing was measured" in one_line(capsys.readouterr().err)


def test_a_file_with_half_of_its_runs_does_not_pass(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(rounds_arguments(fake, tmp_path, "--gate", "--threshold", "2")) == 0
    lines = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_text("".join(lines[:9]))
    capsys.readouterr()
    assert main(["rounds", "--from", str(tmp_path / "half.jsonl"), "--gate", "--threshold", "2"]) == 3
    assert "gate: 8 of 15 runs are there" in capsys.readouterr().err


def busy_from(run: int) -> list[HostState]:
    return [state()] * run + [state(others_cpu=1.0)]


def test_a_core_that_gets_busy_in_the_middle_leaves_no_claim(
    fake: str, tmp_path: Path, host: FakeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    host.during = busy_from(7)
    assert main(rounds_arguments(fake, tmp_path, b="ENV:FAKE_SPEED=110")) == 0
    out, err = capsys.readouterr()
    (line,) = (line for line in out.splitlines() if line.startswith("b - a ") and " decode " in line)
    assert "unresolved" in line
    assert "rounds that count: 2, a claim needs 5" in line
    assert "drift at 256 tokens" in out
    assert "note: the host was busy in round 3, 4, 5" in out
    assert "busy host: during it, other programs use 1.00 cores" in err


def test_the_host_gate_waits_and_says_for_what_or_gives_up_and_is_resumed(
    fake: str, tmp_path: Path, host: FakeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    host.before = [state(), state(others_cpu=1.0), state()]
    assert main(rounds_arguments(fake, tmp_path, "--hostgate", rounds=1)) == 0
    assert "waiting for a quiet host: other programs use 1.00 cores" in capsys.readouterr().err
    assert read_journal(str(tmp_path / "r.jsonl")).runs[1].waited_s >= 0

    (tmp_path / "r.jsonl").unlink()
    host.before = busy_from(2)
    gated = ("--hostgate", "--gate-timeout", "0.001")
    assert main(rounds_arguments(fake, tmp_path, *gated, rounds=1)) == 3
    assert "the host was not quiet within 0.001 s" in one_line(capsys.readouterr().err)
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 2
    host.before = [state()]
    assert main(rounds_arguments(fake, tmp_path, *gated, "--resume", rounds=1)) == 0
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 3
