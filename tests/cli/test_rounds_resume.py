"""A ``rounds`` run that is killed, stopped or begun otherwise, and its file, over a fake bench."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.rounds.journal import read_journal
from tests.cli.command import one_line, rounds_arguments
from tests.rounds.fakes import wait_until_gone

pytestmark = pytest.mark.usefixtures("host")


def started(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_killed_run_goes_on_with_what_is_missing(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, file = tmp_path / "log", tmp_path / "r.jsonl"
    slow = f"ENV:FAKE_LOG={log} ENV:FAKE_SECONDS=0.1"
    command = rounds_arguments(fake, tmp_path, a=slow, b=slow, rounds=3)
    run = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
    outputs = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.svg")]
    command += outputs
    with subprocess.Popen([sys.executable, "-c", run, *command], stderr=subprocess.DEVNULL) as process:
        while started(log) < 4 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = read_journal(str(file)).runs
    assert 2 <= len(before) < 9
    with file.open("ab") as torn:
        torn.write(b'{"kind":"run","round":2,"po')
    assert main(["rounds", "--from", str(file)]) == 0
    assert "the last line has no end" in capsys.readouterr().err
    made = started(log)
    assert main([*command, "--resume"]) == 0
    assert "the last line had no end; that run is made again" in capsys.readouterr().err
    contents = read_journal(str(file))  # which refuses a double record
    assert contents.runs[: len(before)] == before
    assert len(contents.runs) == 9
    assert not contents.torn
    assert started(log) - made == 9 - len(before)
    assert json.loads((tmp_path / "r.json").read_text())["kind"] == "rounds"
    command = command[: -len(outputs)]
    assert main([*command, "--resume"]) == 0
    assert started(log) - made == 9 - len(before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_that_is_stopped_keeps_its_file_says_how_to_go_on_and_leaves_nothing_running(
    number: signal.Signals, code: int, fake: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = rounds_arguments(fake, tmp_path, b=f"ENV:FAKE_LOG={log} ENV:FAKE_MODE=hang", rounds=1)
    heeded = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # also where the tests run under nohup
    run = f"{heeded}; import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
    json_path = tmp_path / "r.json"
    with subprocess.Popen(
        [sys.executable, "-c", run, *command, "--json", str(json_path)], stderr=subprocess.PIPE, text=True
    ) as process:
        while started(log) < 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        assert process.stderr is not None
        said = one_line(process.stderr.read())
    assert process.returncode == code
    assert said.startswith(f"error: stopped by {number.name}" if number != signal.SIGINT else "error: interrupted")
    assert f"{tmp_path / 'r.jsonl'} keeps the runs that ended, and the same command with --resume goes on" in said
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 1
    assert not json_path.exists()
    assert wait_until_gone([int(line.split()[0]) for line in log.read_text().splitlines()])


def test_resuming_with_other_options_or_on_a_foreign_file_is_one_line(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(rounds_arguments(fake, tmp_path, rounds=1)) == 0
    capsys.readouterr()
    assert main(rounds_arguments(fake, tmp_path, rounds=1)) == 2
    assert "exists; go on with --resume" in one_line(capsys.readouterr().err)
    assert main(rounds_arguments(fake, tmp_path, "--resume", rounds=2)) == 2
    assert "was begun with another rounds: 1 there, 2 here" in one_line(capsys.readouterr().err)
    assert main(rounds_arguments(fake, tmp_path, "--resume", b="--batch 2", rounds=1)) == 2
    assert "was begun with another arms" in one_line(capsys.readouterr().err)
    (tmp_path / "r.jsonl").write_text("mine\n")
    assert main(rounds_arguments(fake, tmp_path, "--resume", rounds=1)) == 2
    assert "is no rounds file" in one_line(capsys.readouterr().err)
    assert (tmp_path / "r.jsonl").read_text() == "mine\n"
    assert main(rounds_arguments(fake, tmp_path, "--force", rounds=1)) == 0


def test_a_file_that_cannot_be_read_is_one_line_and_exit_2(
    fake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(rounds_arguments(fake, tmp_path, rounds=1)) == 0
    capsys.readouterr()

    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert main(rounds_arguments(fake, tmp_path, "--resume", rounds=1)) == 2
    assert "r.jsonl cannot be read (Permission denied)" in one_line(capsys.readouterr().err)
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl")]) == 2
    assert "r.jsonl cannot be read (Permission denied)" in one_line(capsys.readouterr().err)


def test_a_line_that_cannot_be_is_one_line_and_exit_2(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    assert main(rounds_arguments(fake, tmp_path, rounds=1)) == 0
    wrong = file.read_text().replace('"round":0,"position":1', '"round":7,"position":1')
    file.write_text(wrong)
    capsys.readouterr()
    for command in (["rounds", "--from", str(file)], rounds_arguments(fake, tmp_path, "--resume", rounds=1)):
        assert main(command) == 2
        assert "r.jsonl, line 3: round 8, the header asks for 1; remove the line" in one_line(capsys.readouterr().err)
    assert file.read_text() == wrong
