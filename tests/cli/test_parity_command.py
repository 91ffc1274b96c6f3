"""The command as a user runs it: real loops on a tiny checkpoint on disk, exit codes, output, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_engine.cli import parity as command
from mlxcel_engine.cli.main import main
from mlxcel_engine.paths import PathRun
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.preload import PRELOAD
from mlxcel_engine.records.parity import ParityRecord
from tests.faults import FaultyEngine
from tests.loaded import write_checkpoint

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import PathRequest, TokenSteps

PATHS = ["cli", "mlx-server", "engine", "dense", "paged", "cache-miss", "cache-hit", "batch-4", "mlx-batch-4"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama"))


def parity(checkpoint: str, *options: str) -> int:
    return main(["parity", "-m", checkpoint, "-p", "to be or not", "-n", "8", *options])


def one_line(text: str) -> str:
    """The error line of ``text``; nothing else may look like one, and there is no traceback."""
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in text
    return lines[0]


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

    real = paths.path_makers()
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

    real = paths.path_makers()
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


RUN = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"


def start(checkpoint: str, *options: str, **pipes: Any) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", RUN, "parity", "-m", checkpoint, "-p", "to be", *options]
    return subprocess.Popen(arguments, text=True, stderr=subprocess.PIPE, **pipes)


def test_a_reader_that_leaves_does_not_change_the_exit_code(checkpoint: str) -> None:
    for options, code in ((("--expect-identical",), 0), (("--expect-identical", "--paths", "cli"), 3)):
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
    assert number != signal.SIGINT or "error: interrupted" in rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_its_rows_marked_incomplete(
    number: signal.Signals, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    with start(checkpoint, "-n", "200", "--json", str(file), stdout=subprocess.DEVNULL) as process:
        wait_for("seeded, prompt-1: mlx-server", process)
        process.send_signal(number)
    record = ParityRecord.model_validate_json(file.read_text())
    assert not record.complete
    assert [row.case for row in record.rows] == ["greedy"] * 10
    assert [stream.path for stream in record.streams] == [*PATHS, "cli"]
    assert main(["parity", "--from", str(file)]) == 0
    assert "incomplete: the run was stopped before its end" in capsys.readouterr().out
    assert main(["parity", "--from", str(file), "--expect-identical"]) == 3
    assert "gate: the record is incomplete" in capsys.readouterr().err


def wait_for(text: str, process: subprocess.Popen[str]) -> None:
    """Read stderr up to a line that holds ``text``."""
    assert process.stderr is not None
    while text not in (line := process.stderr.readline()):
        assert line, "it ended before it began"


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


def test_a_record_is_shown_again_and_drawn(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = str(tmp_path / "r.json"), tmp_path / "r.svg"
    assert parity(checkpoint, "--json", file, "--svg", str(picture)) == 0
    table = capsys.readouterr().out
    first = picture.read_text()
    assert first.startswith("<svg")
    assert main(["parity", "--from", file, "--expect-identical", "--svg", str(picture), "--force"]) == 0
    out, err = capsys.readouterr()
    assert out == table
    assert "gate: passed, 20 pairs" in err
    assert picture.read_text() == first
    assert main(["parity", "--from", file, "--svg", str(picture)]) == 2
    assert "--force" in one_line(capsys.readouterr().err)
    assert main(["parity", "--from", file, "--locate"]) == 2
    assert "--locate does nothing with --from" in one_line(capsys.readouterr().err)


def test_todays_streams_are_held_against_a_record(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "yesterday.json")
    assert parity(checkpoint, "--json", file, "--paths", "cli,engine") == 0
    assert parity(checkpoint, "--against", file, "--expect-identical", "--paths", "cli,engine") == 0
    assert "engine - engine@record" in capsys.readouterr().out
    assert parity(checkpoint, "--against", file, "-n", "7") == 2
    assert "--max-tokens is 7 here and 8 in the record" in one_line(capsys.readouterr().err)
    import mlxcel_engine.paths as paths

    real = paths.path_makers()
    monkeypatch.setattr(paths, "path_makers", lambda width: {**real, "engine": lambda: FaultyEngine(1.3)})
    assert parity(checkpoint, "--against", file, "--expect-identical", "--paths", "engine") == 1
    assert "gate: greedy, prompt-1: engine against engine@record: d" in capsys.readouterr().err


def test_cases_prompts_sampling_and_all_pairs(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, sampling = tmp_path / "p.txt", tmp_path / "s.json"
    prompts.write_text("to be\nor not\n")
    sampling.write_text('{"temperature": 1.5, "top_k": 5}')
    options = ["--prompts", str(prompts), "--sampling", str(sampling), "--cases", "", "--all-pairs", "--seed", "9"]
    assert main(["parity", "-m", checkpoint, *options, "-n", "6", "--batch", "2", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    record = ParityRecord.model_validate_json(out)
    assert [(case.name, case.effective["seed"]) for case in record.config.cases] == [("sampling", 9)]
    assert [prompt.name for prompt in record.config.prompts] == ["prompt-1", "prompt-2"]
    assert record.config.paths == [path.replace("4", "2") for path in PATHS]
    assert len(record.rows) == 2 * 36
    assert {row.verdict for row in record.rows} == {"identical"}
    assert "2 identical" in err  # the summary, with the table on stderr


def test_the_built_in_prompts_run(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompts", "built-in", "--prefill-chunk", "128", "--paths", "cli,engine", "--cases", "greedy"]
    assert main(["parity", "-m", checkpoint, *options, "-n", "4", "--json", "-"]) == 0
    record = ParityRecord.model_validate_json(capsys.readouterr().out)
    assert len(record.config.prompts) == 8
    evidence = record.streams[-1].evidence
    assert evidence is not None
    assert len(evidence.partition) == 3
    assert {row.verdict for row in record.rows} == {"identical"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cases", "gready"), "'gready': no such case"),
        (("--cases", ""), "there is no case to run"),
        (("--cases", "greedy,,seeded"), "an empty name"),
        (("--seed", "-1"), "-1; give a whole number from 0"),
        (("--batch", "1"), "1; give 2 to 32 rows"),
        (("--batch", "33"), "33; give 2 to 32 rows"),
        (("--sampling", "/nonexistent/s"), "--sampling /nonexistent/s: No such file"),
        (("--prompts", "/nonexistent/p"), "--prompt and --prompts exclude each other"),
        (("--against", "/nonexistent/r"), "--against /nonexistent/r: No such file"),
        (("--svg", "/nonexistent/folder/x.svg"), "cannot be written"),
    ],
)
def test_bad_new_options_are_one_line(
    options: tuple[str, ...], said: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity(checkpoint, *options) == 2
    assert said in one_line(capsys.readouterr().err)


def test_a_file_of_another_kind_is_no_record(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    for content, said in (("{}", "created: Field required"), ("[1", "Invalid JSON")):
        file.write_text(content)
        assert main(["parity", "--from", str(file)]) == 2
        assert said in one_line(capsys.readouterr().err)
    assert main(["parity", "--from", "/nonexistent/r"]) == 2
    assert "--from /nonexistent/r: No such file" in one_line(capsys.readouterr().err)
    file.write_text('{"top_k": -1, "bogus": 1}')
    assert parity(checkpoint, "--sampling", str(file)) == 2
    assert "'bogus' is not known" in one_line(capsys.readouterr().err)


def test_a_fault_is_located_and_bisected_on_the_command_line(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlxcel_engine.paths as paths

    real = paths.path_makers()
    monkeypatch.setattr(paths, "path_makers", lambda width: {**real, "engine": lambda: FaultyEngine(1.3)})
    options = ("--locate", "--bisect", "--prefill-chunk", "4", "-n", "24", "--paths", "cli,engine")
    assert parity(checkpoint, *options, "--cases", "greedy") == 0
    out = capsys.readouterr().out
    assert "layer 1 differs first" in out
    assert "the prompt in one chunk (both) diverged" in out
    assert "none of them agrees" in out


def test_the_prompt_caches_paths_can_be_left_out(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(checkpoint, "--no-prompt-cache-case", "--json", "-", "-n", "2") == 0
    record = ParityRecord.model_validate_json(capsys.readouterr().out)
    assert record.config.paths == [path for path in PATHS if not path.startswith("cache-")]
