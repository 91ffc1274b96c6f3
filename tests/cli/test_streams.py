"""Whoever reads our output may leave: nothing stops for it, and the exit code is that of the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel_engine.rounds.journal import read_journal
from tests.bench.scripts import write_script
from tests.cli.command import rounds_arguments


def run_without_readers(*arguments: str, gone: tuple[str, ...], **variables: str) -> int:
    """Run the command with pipes in the place of ``gone`` that nobody reads; the exit code."""
    reading, writing = os.pipe()
    os.close(reading)
    stdout, stderr = (writing if name in gone else subprocess.DEVNULL for name in ("stdout", "stderr"))
    command = [sys.executable, "-m", "mlxcel_engine", *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, stdout=stdout, stderr=stderr, check=False)
    os.close(writing)
    return done.returncode


@pytest.mark.parametrize(
    ("gone", "forced"),
    [
        (("stderr",), {}),
        (("stderr",), {"FORCE_COLOR": "1"}),
        (("stdout",), {"FORCE_COLOR": "1"}),
        (("stdout", "stderr"), {}),
    ],
    ids=["progress", "live progress", "table of a terminal", "both"],
)
def test_rounds_go_on_and_a_failed_gate_stays_one(
    gone: tuple[str, ...], forced: dict[str, str], fake: str, tmp_path: Path
) -> None:
    options = ("--gate", "--threshold", "2", "--host-cpu", "1000")
    command = rounds_arguments(fake, tmp_path, *options, b="ENV:FAKE_SPEED=90", rounds=1)
    assert run_without_readers(*command, gone=gone, **forced) == 1
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 3


def test_an_error_line_that_nobody_reads_does_not_change_the_exit_code() -> None:
    assert run_without_readers("rounds", "--arm", "a=", gone=("stderr",)) == 2


@pytest.mark.parametrize("gone", [("stderr",), ("stdout", "stderr")], ids=" ".join)
def test_bench_goes_on(gone: tuple[str, ...], tmp_path: Path) -> None:
    rig = write_script(tmp_path / "rig.json")
    record = tmp_path / "b.json"
    options = ("--fake-path", str(rig), "--ctx", "9", "--json", str(record))
    assert run_without_readers("bench", *options, gone=gone) == 0
    assert record.stat().st_size


def test_parity_goes_on(checkpoint: str, tmp_path: Path) -> None:
    options = ("-m", checkpoint, "-p", "x", "-n", "4", "--paths", "cli", "--expect-identical")
    switch = {"MLXCEL_SDPA_DETERMINISTIC": "1"}
    assert run_without_readers("parity", *options, gone=("stdout", "stderr"), **switch) == 3


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_from_the_start_take_nothing_away(closed: str, fake: str, tmp_path: Path) -> None:
    command = rounds_arguments(fake, tmp_path, "--host-cpu", "1000", rounds=1)
    shell = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-m", "mlxcel_engine", *command]
    assert subprocess.run(shell, check=False, capture_output=True).returncode == 0
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full to run out of room on")
def test_a_full_disk_is_an_error_for_the_data_and_none_for_the_progress(fake: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlxcel_engine", *rounds_arguments(fake, tmp_path, "--host-cpu", "99", rounds=1)]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, check=False).returncode == 0
        again = [*command[:3], "rounds", "--from", str(tmp_path / "r.jsonl")]
        done = subprocess.run(again, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("error: cannot read or write: No space left")
