"""The command as a user runs it: real loops on a tiny checkpoint on disk, exit codes, output, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.cli import parity as command
from mlxcel_engine.cli.main import main
from mlxcel_engine.paths import PathRun
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.preload import PRELOAD
from mlxcel_engine.records.parity import ParityRecord
from tests.cli.command import PATHS, one_line, parity, start, wait_for
from tests.faults import FaultyEngine

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import PathRequest, TokenSteps


def test_the_table_goes_to_stdout_and_progress_to_stderr(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(checkpoint, "--cases", "greedy") == 0
    out, err = capsys.readouterr()
    assert "tiny-llama: llama, float32, unquantized weights" in out
    for pair in ("cli - mlx-server", "cli - engine"):
        (line,) = (line for line in out.splitlines() if line.startswith(f"{pair} "))
        assert "identical" in line
        assert "bitwise" in line
    assert "\x1b" not in out + err
    assert "greedy, prompt-1: mlx-server" in err
    assert "has no chat template" in err
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_the_record_is_complete_and_reads_back(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "parity.json"
    assert parity(checkpoint, "--json", str(file), "--expect-identical") == 0
    raw = json.loads(file.read_text())
    assert (raw["schema"], raw["kind"]) == (1, "parity")
    record = ParityRecord.model_validate(raw)
    assert [stream.path for stream in record.streams] == PATHS * 2
    assert record.complete
    assert len({stream.prompt_sha256 for stream in record.streams}) == 1
    assert record.environment.deterministic
    assert record.environment.variables["MLXCEL_SDPA_DETERMINISTIC"] == "1"
    assert "/" not in json.dumps({**raw, "streams": []})  # no path of this machine
    assert record.config.model.spec == "tiny-llama"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parity.json"]


def test_json_on_stdout_is_nothing_but_json(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(checkpoint, "--json", "-") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"][0]["verdict"] == "identical"
    assert "cli - engine" in err


def test_an_existing_output_is_refused_without_force(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    file.write_text("mine")
    assert parity(checkpoint, "--json", str(file)) == 2
    assert "--force" in one_line(capsys.readouterr().err)
    assert file.read_text() == "mine"
    assert parity(checkpoint, "--json", str(file), "--force") == 0
    assert json.loads(file.read_text())["kind"] == "parity"


@pytest.mark.parametrize(("factor", "tokens", "verdict"), [(1.3, "24", "diverged"), (1.03, "4", "drift")])
def test_the_gate_fires(
    factor: float,
    tokens: str,
    verdict: str,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import mlxcel_engine.paths as paths

    real = paths.path_makers(4)
    monkeypatch.setattr(paths, "path_makers", lambda width: {**real, "engine": lambda: FaultyEngine(factor)})
    assert parity(checkpoint, "--expect-identical", "-n", tokens, "--cases", "greedy") == 1
    out, err = capsys.readouterr()
    (line,) = (line for line in out.splitlines() if line.startswith("cli - engine "))
    assert verdict in line
    assert f"gate: greedy, prompt-1: cli against engine: {verdict}" in err
    assert parity(checkpoint, "-n", tokens) == 0  # without the gate it is a recorded baseline


def test_a_gate_without_a_compared_pair_exits_3(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(checkpoint, "--expect-identical", "--paths", "cli") == 3
    assert "no pair was compared" in capsys.readouterr().err


def test_the_gate_needs_the_switch(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PRELOAD", replace(PRELOAD, deterministic=False))
    assert parity(checkpoint, "--expect-identical") == 2
    assert "MLXCEL_SDPA_DETERMINISTIC=1" in one_line(capsys.readouterr().err)


def test_a_crashed_path_exits_3_keeps_the_others_and_hides_the_traceback_unless_asked(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Crashing(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            return PathRun(self.crash(), lambda: pytest.fail("asked for evidence"))

        def crash(self) -> TokenSteps:
            raise MemoryError("out of memory")
            yield

    import mlxcel_engine.paths as paths

    real = paths.path_makers(4)
    monkeypatch.setattr(paths, "path_makers", lambda width: {**real, "engine": Crashing})
    file = tmp_path / "out.json"
    assert parity(checkpoint, "--json", str(file)) == 3
    out, err = capsys.readouterr()
    assert "path engine failed after 0 tokens (MemoryError: out of memory)" in one_line(err)
    assert "identical" in out
    assert "failed after 0 tokens" in out
    assert json.loads(file.read_text())["rows"][1]["verdict"] == "invalid"
    assert parity(checkpoint, "--debug") == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-p", ""), "the prompt is empty"),
        (("--prompt-file", "/nonexistent/prompt"), "/nonexistent/prompt"),
        (("--prompt-file", "x"), "exclude each other"),
        (("-n", "0"), "0; give a whole number of 1 or more"),
        (("-n", "many"), "many"),
        (("--prefill-chunk", "0"), "0; give a whole number of 1 or more"),
        (("--noise-bound", "nan"), "nan; give a number of 0 or more"),
        (("-n", "600"), "exceed the context of 512"),
        (("--paths", "cli,paged2"), "'paged2': no such path"),
        (("--dtype", "float16"), "float16 is unusable on a CPU"),
        (("--dtype", "float8"), "float8"),
        (("--weights", "tiny"), "tiny"),
        (("--json", "/nonexistent/folder/x.json"), "cannot be written"),
        (("--json", "/nonexistent/x", "--svg", "/nonexistent/x", "--force"), "/nonexistent/x is named for two files"),
        (("--json", "/nonexistent/x", "--against", "/nonexistent/x"), "/nonexistent/x is named for two files"),
        (("--from", "/nonexistent/x", "--svg", "/nonexistent/x"), "/nonexistent/x is named for two files"),
        (("--paths", ""), "no path is left; give some of cli"),
        (("--paths", "cache-hit", "--no-prompt-cache-case"), "no path is left without the prompt cache's"),
        (("--bogus",), "--bogus"),
        (("-m", "/nonexistent/model"), "no such directory"),
        (("-m", "/nonexistent/model.gguf"), "no such file"),
        (("-m", "nobody/no-such-model"), "nobody/no-such-model"),
        (("-m", "synthetic:gpt-9"), "llama-3.2-1b"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    options: tuple[str, ...], said: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["parity", "-m", checkpoint, *options]
    if options[0] not in ("-p", "--prompt-file") or said == "exclude each other":
        arguments[3:3] = ["-p", "text"]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert said in one_line(err)
    assert out == ""


def test_the_prompt_comes_from_a_file_without_its_last_newline(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("héllo\n", encoding="utf-8")
    assert main(["parity", "-m", checkpoint, "--prompt-file", str(file), "-n", "2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["prompts"][0]["text"] == "héllo"
    file.write_bytes(b"\xff\xfe")
    assert main(["parity", "-m", checkpoint, "--prompt-file", str(file)]) == 2
    assert "not UTF-8" in one_line(capsys.readouterr().err)


def test_help_version_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["parity", "--help"]):
        assert main(arguments) == 0
        assert "Example" in capsys.readouterr().out
    for arguments in (["--version"], ["parity", "--version"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out.startswith("mlxcel-engine ")
    assert main([]) == 2
    assert "parity" in capsys.readouterr().out
    assert main(["pairty"]) == 2
    assert "pairty" in one_line(capsys.readouterr().err)


def test_a_reader_that_leaves_does_not_change_the_exit_code(checkpoint: str) -> None:
    gated = ("--expect-identical", "--paths")
    alone = (*gated, "cli")
    for options, code in (((*gated, "cli,engine"), 0), (alone, 3), ((*alone, "--json", "-"), 3)):
        reading, writing = os.pipe()
        os.close(reading)
        with start(checkpoint, "-n", "4", *options, stdout=writing) as process:
            os.close(writing)
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        assert process.returncode == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_before_its_first_stream_gives_its_output_names_back(
    number: signal.Signals, code: int, checkpoint: str, tmp_path: Path
) -> None:
    outputs = ("--json", str(tmp_path / "out.json"), "--svg", str(tmp_path / "out.svg"))
    with start(checkpoint, "-n", "450", *outputs, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        wait_for("greedy", process)
        assert (tmp_path / "out.json").exists()
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in rest
    assert ("error: interrupted" if number == signal.SIGINT else "error: stopped by SIGTERM") in rest


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full to run out of room on")
def test_odd_output_places_are_one_line(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("/dev/full", str(tmp_path)):
        for force in ((), ("--force",)):
            assert parity(checkpoint, "--json", place, *force) == 2
            assert "not a regular file" in one_line(capsys.readouterr().err)
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("old")
    link.symlink_to(target)
    assert parity(checkpoint, "--json", str(link), "--force") == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["kind"] == "parity"


def test_options_without_effect_and_empty_names_are_refused(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity(checkpoint, "--allow-near-tie") == 2
    assert "--expect-identical" in one_line(capsys.readouterr().err)
    assert main(["parity", "-m", "", "-p", "x"]) == 2
    assert "the model name is empty" in one_line(capsys.readouterr().err)
    assert main(["parity", "-m", "~nobody-of-this-name/x", "-p", "x"]) == 2
    assert "not a usable path" in one_line(capsys.readouterr().err)
    assert main(["parity", "-m", checkpoint, "-p", "\udcff"]) == 2
    assert "not valid UTF-8" in one_line(capsys.readouterr().err)
    assert parity(checkpoint, "--paths", "cli") == 0
    assert "nothing was compared" in capsys.readouterr().err
