"""Cases, prompts, diagnoses, and records: killed, shown again, held against, drawn; as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.cli.parity_inputs import choose_paths
from mlxcel_engine.records.parity import ParityRecord
from tests.cli.command import PATHS, one_line, parity, start, wait_for
from tests.faults import FaultyEngine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_its_rows_marked_incomplete(
    number: signal.Signals, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    paths = ("--paths", "cli,mlx-server,engine")
    with start(checkpoint, "-n", "200", *paths, "--json", str(file), stdout=subprocess.DEVNULL) as process:
        wait_for("seeded, prompt-1: mlx-server", process)
        process.send_signal(number)
    record = ParityRecord.model_validate_json(file.read_text())
    assert not record.complete
    assert [(row.case, row.left, row.right) for row in record.rows] == [
        ("greedy", "cli", "mlx-server"),
        ("greedy", "cli", "engine"),
    ]
    assert [stream.path for stream in record.streams] == ["cli", "mlx-server", "engine", "cli"]
    assert main(["parity", "--from", str(file)]) == 0
    assert "incomplete: the run was stopped before its end" in capsys.readouterr().out
    assert main(["parity", "--from", str(file), "--expect-identical"]) == 3
    assert "gate: the record is incomplete" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "default"),
        ("--prompt", "x"),
        ("--max-tokens", "64"),
        ("--cases", "greedy"),
        ("--seed", "1234"),
        ("--batch", "4"),
        ("--prefill-chunk", "9"),
        ("--no-chat-template",),
        ("--no-prompt-cache-case",),
        ("--dtype", "auto"),
        ("--weights", "auto"),
        ("--noise-bound", "1"),
        ("--trust-remote-code",),
        ("--json", "r.json"),
        ("--locate",),
        ("--all-pairs",),
    ],
    ids=lambda options: str(options[0]),
)
def test_what_only_a_run_can_do_is_refused_beside_a_record(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", "--from", "/nonexistent/r", *options]) == 2
    assert f"{options[0]} does nothing with --from" in one_line(capsys.readouterr().err)


def test_todays_streams_are_held_against_a_record(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "yesterday.json")
    assert parity(checkpoint, "--json", file, "--paths", "cli,engine") == 0
    assert parity(checkpoint, "--against", file, "--expect-identical", "--paths", "cli,engine") == 0
    assert "engine - engine@record" in capsys.readouterr().out
    assert parity(checkpoint, "--against", file, "-n", "7") == 2
    assert "--max-tokens is 7 here and 8 in the record" in one_line(capsys.readouterr().err)
    assert parity(checkpoint, "--against", file, "--paths", "dense,paged") == 2
    assert "no stream of these cases, prompts and paths" in one_line(capsys.readouterr().err)
    assert parity(checkpoint, "--against", file, "--paths", "cli", "--cases", "greedy") == 0
    out = capsys.readouterr().out
    assert "engine - engine@record, n/a: it was not run now" in out
    assert "seeded, prompt-1: cli - cli@record, n/a: it was not run now" in out
    import mlxcel_engine.paths as paths

    real = paths.path_makers(4)
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
    assert [(case.name, case.effective.seed) for case in record.config.cases] == [("sampling", 9)]
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

    real = paths.path_makers(4)
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


def test_a_path_of_another_package_is_not_taken_for_the_prompt_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlxcel_engine.paths as paths

    real = paths.path_makers(4)
    monkeypatch.setattr(paths, "path_makers", lambda width: {**real, "cache-mine": lambda: FaultyEngine(1.0)})
    assert len(choose_paths(None, 4, prompt_cache=True)) == 10
    assert len(choose_paths(None, 4, prompt_cache=False)) == 8
    assert len(choose_paths("cache-mine", 4, prompt_cache=False)) == 1


def record_of(checkpoint: str, file: Path) -> dict[str, Any]:
    assert parity(checkpoint, "--json", str(file), "--paths", "cli,engine", "--force") == 0
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def test_a_record_that_was_edited_into_nonsense_is_refused(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    record = record_of(checkpoint, file)
    located = {"step": 1, "first": "layer 9", "jump": None, "layers": [], "problem": None}
    edits: list[tuple[dict[str, Any], str]] = [
        ({"schema": 2}, "schema: Value error, schema 2, this version reads schema 1"),
        ({"streams": [{**record["streams"][0], "top_logprobs": []}]}, "8 ids but logprobs of 0 steps"),
        ({"config": {**record["config"], "cases": [{"name": "greedy", "sampling": {}, "effective": {}}]}}, "order"),
        ({"rows": [{**record["rows"][0], "located": located}]}, "layer 9 or None is none of its layers"),
    ]
    for change, said in edits:
        file.write_text(json.dumps({**record, **change}))
        capsys.readouterr()
        assert main(["parity", "--from", str(file), "--expect-identical"]) == 2
        assert said in one_line(capsys.readouterr().err)
        assert parity(checkpoint, "--against", str(file)) == 2
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(record).encode())  # as some editors save it
    assert main(["parity", "--from", str(file), "--expect-identical"]) == 0
