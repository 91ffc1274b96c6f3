"""``rounds`` as a user runs it, over a fake bench: exit codes, files, resume, gates, errors."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.records.rounds import RoundsRecord
from mlxcel_engine.rounds.journal import read_journal
from tests.rounds.fakes import FakeHost, install_fake_bench, state, wait_until_gone

if TYPE_CHECKING:
    from mlxcel_engine.records.rounds import HostState


@pytest.fixture
def fake(tmp_path: Path) -> str:
    return f"PYTHON:{install_fake_bench(tmp_path)}"


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """The command looks at a fake host; at a quiet one, unless a test makes it busy."""
    quiet = FakeHost()
    monkeypatch.setattr("mlxcel_engine.cli.rounds.ThisHost", lambda: quiet)
    return quiet


def arguments(fake: str, folder: Path, *options: str, a: str = "", b: str = "", rounds: int = 5) -> list[str]:
    arms = ["--arm", f"a={fake} --path cli {a}", "--arm", f"b={fake} --path engine {b}"]
    size = ["--ctx", "256", "-n", "32", "--rounds", str(rounds)]
    return ["rounds", *arms, *size, "--out", str(folder / "r.jsonl"), *options]


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in text
    return lines[0]


def test_rounds_end_with_a_summary_that_the_file_gives_again(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(fake, tmp_path, "--null-every-arm", b="ENV:FAKE_SPEED=110")
    assert main(command) == 0
    out, err = capsys.readouterr()
    (line,) = (line for line in out.splitlines() if line.startswith("b - a ") and " decode " in line)
    assert "faster" in line
    assert "engine - cli" in line
    assert "b-null - b" in out
    assert "round 5 of 5" in err
    assert "20 of 20 runs" in err
    assert "\x1b" not in out + err
    contents = read_journal(str(tmp_path / "r.jsonl"))
    assert len(contents.runs) == 20
    assert contents.runs[0].lines[0]["rows"][0]["a_column_of_another_version"] == [1, 2]  # kept whole
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl")]) == 0
    assert capsys.readouterr().out == out


def test_every_output_is_written(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {name: str(tmp_path / name) for name in ("r.json", "r.csv", "s.svg", "p.svg")}
    named = [
        "--json",
        outputs["r.json"],
        "--csv",
        outputs["r.csv"],
        "--svg",
        outputs["s.svg"],
        "--plot",
        outputs["p.svg"],
    ]
    assert main(arguments(fake, tmp_path, *named, rounds=2)) == 0
    raw = json.loads(Path(outputs["r.json"]).read_text())
    assert (raw["schema"], raw["kind"], len(raw["runs"])) == (1, "rounds", 6)
    assert raw["environment"]["a"]["mlx"] == "0.32.4"
    assert RoundsRecord.model_validate(raw).rows[0].verdict == "unresolved"
    assert Path(outputs["r.csv"]).read_text().startswith("arm,reference,null,path")
    for name in ("s.svg", "p.svg"):
        ET.fromstring(Path(outputs[name]).read_text())
    capsys.readouterr()
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--csv", outputs["r.csv"]]) == 2
    assert "r.csv exists" in one_line(capsys.readouterr().err)
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"] == raw["rows"]
    assert "b - a" in err


@pytest.mark.parametrize(
    ("mode", "status", "said"),
    [
        ("crash", "crashed", "exit code 3: error: the weights are gone"),
        ("segfault", "crashed", "killed by SIGSEGV: it wrote no error"),
        ("hang", "timeout", "no end within 2 s"),
        ("garbage", "garbage", "line 2 of its output is no bench record: 'Fetching 12 files: 100%'"),
        ("empty", "garbage", "it printed no measurement"),
    ],
)
def test_an_arm_that_fails_is_recorded_named_and_exits_3_and_the_others_go_on(
    mode: str, status: str, said: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(fake, tmp_path, "--run-timeout", "2", b=f"ENV:FAKE_MODE={mode}", rounds=1)
    assert main(command) == 3
    out, err = capsys.readouterr()
    assert f"b, round 1: {status}: {said}" in one_line(err)
    assert f"note: b, round 1: {status}: {said}" in out
    runs = read_journal(str(tmp_path / "r.jsonl")).runs
    assert [(run.arm, run.null, run.status) for run in runs] == [
        ("a", False, "ok"),
        ("b", False, status),
        ("a", True, "ok"),
    ]
    if mode in ("crash", "hang", "garbage"):
        kept = {"crash": "loading", "hang": "about to hang", "garbage": "Fetching 12 files"}[mode]
        assert kept in runs[1].output
        assert f"  | {kept}" in err
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate", "--threshold", "2"]) == 3
    assert "gate: b: no pair to compare" in capsys.readouterr().err


def test_the_gate_fires_on_an_arm_that_is_slower(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(fake, tmp_path, "--gate", b="ENV:FAKE_SPEED=95")) == 1
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
    command = arguments(fake, tmp_path, b="ENV:FAKE_SPEED=90 ENV:FAKE_MODE=partial", rounds=2)
    assert main(command) == 3
    assert "2 of 6 runs failed; the first: b, round 1: crashed" in one_line(capsys.readouterr().err)
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate", "--threshold", "2"]) == 1
    err = capsys.readouterr().err
    assert "gate: b, engine at 256 tokens: -" in err
    assert "warning: 2 of 6 runs failed; the first: b, round 1: crashed" in err


@pytest.mark.parametrize(("mode", "status"), [("partial", "crashed"), ("late", "timeout")])
def test_what_was_measured_before_a_failure_is_kept(
    mode: str, status: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--run-timeout", "2", "--null-every-arm")
    assert main(arguments(fake, tmp_path, *options, b=f"ENV:FAKE_MODE={mode}", rounds=1)) == 3
    runs = read_journal(str(tmp_path / "r.jsonl")).runs
    assert [(run.status, len(run.lines)) for run in runs if run.arm == "b"] == [(status, 1)] * 2
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("b - a ") and " decode " in line
    )
    assert "engine - cli" in line


def test_a_host_that_is_never_quiet_lets_nothing_pass_and_blames_nobody(
    fake: str, tmp_path: Path, host: FakeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    host.during = [state(others_cpu=1.0)]
    assert main(arguments(fake, tmp_path, "--gate", b="ENV:FAKE_SPEED=95")) == 3
    assert "gate: b, engine at 256 tokens: of 5 pairs none counts" in capsys.readouterr().err
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate", "--threshold", "2"]) == 3


def test_the_gate_passes_equal_arms_and_can_ask_for_equal_tokens(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(fake, tmp_path, "--gate", "--expect-same-tokens", b="ENV:FAKE_TOKENS=other")) == 1
    out, err = capsys.readouterr()
    assert "they do not generate the same tokens" in out
    assert "gate: b, engine at 256 tokens: it does not generate the tokens of a" in err
    assert main(["rounds", "--from", str(tmp_path / "r.jsonl"), "--gate"]) == 0


def test_nothing_measured_is_never_a_pass(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = "ENV:FAKE_MODE=crash"
    assert main(arguments(fake, tmp_path, "--gate", a=failing, b=failing, rounds=1)) == 3
    assert "3 of 3 runs failed" in one_line(capsys.readouterr().err)
    header = (tmp_path / "r.jsonl").read_text().splitlines()[0]
    (tmp_path / "bare.jsonl").write_text(header + "\n")
    assert main(["rounds", "--from", str(tmp_path / "bare.jsonl")]) == 3
    assert "nothing was measured" in one_line(capsys.readouterr().err)


def busy_from(run: int) -> list[HostState]:
    return [state()] * run + [state(others_cpu=1.0)]


def test_a_core_that_gets_busy_in_the_middle_leaves_no_claim(
    fake: str, tmp_path: Path, host: FakeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    host.during = busy_from(7)
    assert main(arguments(fake, tmp_path, b="ENV:FAKE_SPEED=110")) == 0
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
    assert main(arguments(fake, tmp_path, "--hostgate", rounds=1)) == 0
    assert "waiting for a quiet host: other programs use 1.00 cores" in capsys.readouterr().err
    assert read_journal(str(tmp_path / "r.jsonl")).runs[1].waited_s >= 0

    (tmp_path / "r.jsonl").unlink()
    host.before = busy_from(2)
    gated = ("--hostgate", "--gate-timeout", "0.001")
    assert main(arguments(fake, tmp_path, *gated, rounds=1)) == 3
    assert "the host was not quiet within 0.001 s" in one_line(capsys.readouterr().err)
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 2
    host.before = [state()]
    assert main(arguments(fake, tmp_path, *gated, "--resume", rounds=1)) == 0
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 3


def started(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_killed_run_goes_on_with_what_is_missing(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, file = tmp_path / "log", tmp_path / "r.jsonl"
    slow = f"ENV:FAKE_LOG={log} ENV:FAKE_SECONDS=0.1"
    command = arguments(fake, tmp_path, a=slow, b=slow, rounds=3)
    run = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
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
    contents = read_journal(str(file))  # which refuses a double record
    assert contents.runs[: len(before)] == before
    assert len(contents.runs) == 9
    assert not contents.torn
    assert started(log) - made == 9 - len(before)
    assert main([*command, "--resume"]) == 0
    assert started(log) - made == 9 - len(before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_keeps_its_file_and_leaves_nothing_running(
    number: signal.Signals, code: int, fake: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = arguments(fake, tmp_path, b=f"ENV:FAKE_LOG={log} ENV:FAKE_MODE=hang", rounds=1)
    run = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
    json_path = tmp_path / "r.json"
    with subprocess.Popen(
        [sys.executable, "-c", run, *command, "--json", str(json_path)], stderr=subprocess.PIPE, text=True
    ) as process:
        while started(log) < 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == code
    assert len(read_journal(str(tmp_path / "r.jsonl")).runs) == 1
    assert not json_path.exists()
    assert wait_until_gone([int(line.split()[0]) for line in log.read_text().splitlines()])


def test_resuming_with_other_options_or_on_a_foreign_file_is_one_line(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(fake, tmp_path, rounds=1)) == 0
    capsys.readouterr()
    assert main(arguments(fake, tmp_path, rounds=1)) == 2
    assert "exists; go on with --resume" in one_line(capsys.readouterr().err)
    assert main(arguments(fake, tmp_path, "--resume", rounds=2)) == 2
    assert "was begun with another rounds: 1 there, 2 here" in one_line(capsys.readouterr().err)
    assert main(arguments(fake, tmp_path, "--resume", b="--batch 2", rounds=1)) == 2
    assert "was begun with another arms" in one_line(capsys.readouterr().err)
    (tmp_path / "r.jsonl").write_text("mine\n")
    assert main(arguments(fake, tmp_path, "--resume", rounds=1)) == 2
    assert "is no rounds file" in one_line(capsys.readouterr().err)
    assert (tmp_path / "r.jsonl").read_text() == "mine\n"
    assert main(arguments(fake, tmp_path, "--force", rounds=1)) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arm", "a="], "1 given"),
        (["--arm", "a=", "--arm", "a="], "the name is used 2 times"),
        (["--arm", "a-null=", "--arm", "b="], "names that end in -null"),
        (["--arm", "a=--json x", "--arm", "b="], "--json belongs to rounds"),
        (["--arm", "a=", "--arm", "b=", "--extra", "--csv x"], "--csv belongs to rounds"),
        (["--arm", "a=", "--arm", "b=", "--rounds", "0"], "0; give a whole number"),
        (["--arm", "a=", "--arm", "b=", "--rounds", "1001"], "give 1000 at most"),
        (["--arm", "a=", "--arm", "b=", "--threshold", "-1"], "--threshold -1: give a percentage"),
        (["--arm", "a=", "--arm", "b=", "--threshold", "many"], "or auto"),
        (["--arm", "a=", "--arm", "b=", "--run-timeout", "0"], "give a number above 0"),
        (["--arm", "a=", "--arm", "b=", "--host-cpu", "nan"], "give a number above 0"),
        (["--arm", "a=", "--arm", "b=", "--expect-same-tokens"], "give --gate, too"),
        (["--from", "x.jsonl", "--arm", "a="], "--arm does nothing with --from"),
        (["--from", "x.jsonl", "--resume"], "--resume does nothing with --from"),
        (["--from", "x.jsonl", "-m", "default"], "--model does nothing with --from"),
        (["--from", "x.jsonl", "--ctx", "256"], "--ctx does nothing with --from"),
        (["--from", "x.jsonl", "-n", "128"], "--max-tokens does nothing with --from"),
        (["--from", "x.jsonl", "--rounds", "5"], "--rounds does nothing with --from"),
        (["--from", "x.jsonl", "--null-every-arm"], "--null-every-arm does nothing with --from"),
        (["--from", "x.jsonl", "--extra", ""], "--extra does nothing with --from"),
        (["--from", "x.jsonl", "--run-timeout", "9"], "--run-timeout does nothing with --from"),
        (["--from", "x.jsonl", "--hostgate"], "--hostgate does nothing with --from"),
        (["--from", "x.jsonl", "--gate-timeout", "9"], "--gate-timeout does nothing with --from"),
        (["--from", "x.jsonl", "--host-cpu", "9"], "--host-cpu does nothing with --from"),
        (["--from", "x.jsonl", "--json", "./x.jsonl", "--force"], "is named for two files"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--from" in options else ["--out", str(tmp_path / "r.jsonl")]
    assert main(["rounds", *options, *out]) == 2
    assert said in one_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_places_are_checked_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["rounds", "--arm", "a=", "--arm", "b="]
    assert main(arms) == 2
    assert "--out FILE.jsonl is missing" in one_line(capsys.readouterr().err)
    for place in (str(tmp_path), str(tmp_path / "no" / "r.jsonl")):
        assert main([*arms, "--out", place]) == 2
        assert "give another file" in one_line(capsys.readouterr().err)
    assert main(["rounds", "--from", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in one_line(capsys.readouterr().err)
    assert main([*arms, "--out", str(tmp_path / "r.jsonl"), "--json", str(tmp_path / "no" / "x")]) == 2
    assert "cannot be written" in one_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rounds", "--help"]) == 0
    assert "Example" in capsys.readouterr().out
