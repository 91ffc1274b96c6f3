"""``rounds`` as a user runs it, over a fake bench: summary, outputs, arms that fail, errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.records.rounds import RoundsRecord
from mlxcel_engine.rounds.journal import read_journal
from tests.cli.command import one_line, rounds_arguments

pytestmark = pytest.mark.usefixtures("host")


def test_rounds_end_with_a_summary_that_the_file_gives_again(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = rounds_arguments(fake, tmp_path, "--null-every-arm", b="ENV:FAKE_SPEED=110")
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
    assert main(rounds_arguments(fake, tmp_path, *named, rounds=2)) == 0
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
        ("flood", "garbage", "it wrote more than 32 MiB and was ended"),
    ],
)
def test_an_arm_that_fails_is_recorded_named_and_exits_3_and_the_others_go_on(
    mode: str, status: str, said: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = "2" if status == "timeout" else "60"  # a busy machine may start the others late
    command = rounds_arguments(fake, tmp_path, "--run-timeout", limit, b=f"ENV:FAKE_MODE={mode}", rounds=1)
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


def test_what_a_failed_run_wrote_does_not_reach_the_terminal_raw(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = ["--svg", str(tmp_path / "s.svg"), "--plot", str(tmp_path / "p.svg")]
    assert main(rounds_arguments(fake, tmp_path, *pictures, b="ENV:FAKE_MODE=escape", rounds=1)) == 3
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x07" not in out + err
    assert "  | red\\x00\\x08" in err
    assert "b, round 1: crashed: exit code 3: error: lost\\x07" in one_line(err)
    for picture in pictures[1::2]:
        ET.fromstring(Path(picture).read_text())
    failed = read_journal(str(tmp_path / "r.jsonl")).runs[1]
    assert failed.output.startswith("\x1b]0;title\x07\x1b[31mred\x00")


@pytest.mark.parametrize("bad", ["--out", "--json", "--arm", "--extra", "-m", "--from"])
def test_an_argument_that_is_not_utf_8_is_one_line(
    bad: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = f"b={fake} \udcff" if bad == "--arm" else str(tmp_path / "r\udcff")
    assert main(rounds_arguments(fake, tmp_path, bad, odd, rounds=1)) == 2
    assert "\\udcff" in (said := one_line(capsys.readouterr().err))
    assert "is not valid UTF-8" in said
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(("mode", "status"), [("partial", "crashed"), ("late", "timeout")])
def test_what_was_measured_before_a_failure_is_kept(
    mode: str, status: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = "2" if status == "timeout" else "60"
    options = ("--run-timeout", limit, "--null-every-arm")
    assert main(rounds_arguments(fake, tmp_path, *options, b=f"ENV:FAKE_MODE={mode}", rounds=1)) == 3
    runs = read_journal(str(tmp_path / "r.jsonl")).runs
    assert [(run.status, len(run.lines)) for run in runs if run.arm == "b"] == [(status, 1)] * 2
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("b - a ") and " decode " in line
    )
    assert "engine - cli" in line


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


def test_runs_do_not_go_to_stdout(
    fake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(tmp_path.iterdir())
    assert main(rounds_arguments(fake, tmp_path, "--out", "-", rounds=1)) == 2
    assert "--out -: runs are kept in a file" in one_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == before


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
