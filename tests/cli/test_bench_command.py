"""``bench`` as a user runs it: its whole output on a scripted rig, and real loops on a tiny checkpoint."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_engine.cli.main import main
from mlxcel_engine.printable import printable
from mlxcel_engine.records.bench import BenchRecord
from tests.bench.scripts import MODEL, write_script
from tests.cli.command import one_line
from tests.loaded import write_checkpoint
from tests.snapshots import check_snapshot

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


def fake(tmp_path: Path, *options: str, **changes: Any) -> int:
    file = write_script(tmp_path / "rig.json", **changes)
    return main(["bench", "--fake-path", str(file), "--ctx", "100", "-n", "5", *options])


def test_the_whole_output(tmp_path: Path, capsys: Capture) -> None:
    rows, record = tmp_path / "rows.csv", tmp_path / "bench.json"
    assert fake(tmp_path, "--ctx", "8192", "--label", "snap", "--csv", str(rows), "--json", str(record)) == 0
    out, err = capsys.readouterr()
    check_snapshot("bench.out.txt", out)
    check_snapshot("bench.err.txt", err)
    check_snapshot("bench.csv", rows.read_text())
    check_snapshot("bench.json", record.read_text())


def test_the_whole_output_of_a_batch_with_failures_on_a_synthetic_model(tmp_path: Path, capsys: Capture) -> None:
    model = {**MODEL, "label": "synthetic:fake (random weights)", "synthetic": True}
    loops = {
        "cli": {"unavailable": "it decodes one stream"},
        "mlx-server": {"eos_after": 3},
        "engine": {"breaks": "out of memory"},
    }
    options = ("--batch", "4", "--ragged", "--no-ignore-eos", "--warmup", "none", "--json", "-")
    assert fake(tmp_path, *options, model=model, loops=loops) == 3
    out, err = capsys.readouterr()
    check_snapshot("bench_batch.out.jsonl", out)
    check_snapshot("bench_batch.err.txt", err)
    assert "path engine failed at ctx 100" in one_line(err)


def test_json_lines_are_records_of_one_measurement_each(tmp_path: Path, capsys: Capture) -> None:
    assert fake(tmp_path, "--json", "-") == 0
    out, err = capsys.readouterr()
    records = [BenchRecord.model_validate_json(line) for line in out.splitlines()]
    assert [[row.path for row in record.rows] for record in records] == [
        ["cli"],
        ["mlx-server"],
        ["engine"],
        ["server"],
    ]
    assert "Fake-1B" in err


def test_csv_grows_and_keeps_one_header(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "rows.csv"
    for _ in range(2):
        assert fake(tmp_path, "--path", "cli", "--csv", str(file)) == 0
    lines = file.read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("created,model,synthetic,")
    assert lines[1] == lines[2]
    file.write_text(file.read_text()[:-20])  # as a killed run leaves it
    assert fake(tmp_path, "--path", "cli", "--csv", str(file)) == 0
    assert file.read_text().splitlines()[3] == lines[1]


def test_a_csv_of_other_columns_is_refused_and_kept(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n")
    assert fake(tmp_path, "--csv", str(file)) == 2
    assert "has other columns" in one_line(capsys.readouterr().err)
    assert file.read_text() == "a,b\n1,2\n"


def test_an_existing_record_is_refused_without_force(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "kept.json"
    file.write_text("mine")
    assert fake(tmp_path, "--json", str(file)) == 2
    assert "--force" in one_line(capsys.readouterr().err)
    assert file.read_text() == "mine"
    assert fake(tmp_path, "--json", str(file), "--force") == 0
    assert json.loads(file.read_text())["kind"] == "bench"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-n", "0"), "0; give a whole number of 1 or more"),
        (("--ctx", "0"), "0; give a whole number of 1 or more"),
        (("--prefill-chunk", "0"), "0; give a whole number of 1 or more"),
        (("--batch", "0"), "0; give a whole number of 1 or more"),
        (("--warmup-tokens", "0"), "0; give a whole number of 1 or more"),
        (("--path", "vllm"), "--path vllm: no such path"),
        (("--warmup", "some"), "--warmup"),
        (("--decode-storage", "disk"), "--decode-storage"),
        (("--ragged",), "--ragged needs streams that differ in length"),
        (("-n", "1024"), "leave no room for a prompt in the context of 1024"),
        (("--csv", "/nonexistent/folder/x.csv"), "cannot be written"),
        (("--json", "/nonexistent/x", "--csv", "/nonexistent/../nonexistent/x"), "x is named for two files"),
        (("--prompt-cache", "--ctx", "1"), "a prompt of one token has no prefix to keep"),
        (("--json", "/nonexistent/folder/x.json"), "cannot be written"),
        (("--prompt-cache", "-n", "1023"), "a prompt of one token has no prefix to keep; generate fewer (-n)"),
        (("--csv", "-"), "rows are appended to a file"),
        (("--csv", "/dev/null/x.csv"), "cannot be written"),
        (("--csv", f"/tmp/{300 * 'x'}"), "cannot be written (File name too long)"),
        (("--json", f"/tmp/{300 * 'x'}"), "cannot be written (File name too long)"),
        (("--decode-storage", "paged", "--path", "cli"), "--decode-storage paged: none of these paths has a choice"),
        (("--decode-storage", "dense", "--path", "mlx-server"), "--decode-storage dense: none of these paths"),
        (("--invariant", "--path", "cli"), "--invariant: none of these paths has that mode"),
        (("--fake-path", "/nonexistent/rig.json"), "/nonexistent/rig.json"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(options: tuple[str, ...], said: str, tmp_path: Path, capsys: Capture) -> None:
    assert fake(tmp_path, *options) == 2
    out, err = capsys.readouterr()
    assert said in one_line(err)
    assert out == ""


def test_an_end_of_text_on_the_last_token_is_shown_as_such(tmp_path: Path, capsys: Capture) -> None:
    assert fake(tmp_path, "--no-ignore-eos", loops={"engine": {"eos_after": 5}}) == 0
    ends = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()[-4:]}
    assert ends == {"cli": "length", "mlx-server": "length", "engine": "stop", "server": "length"}


def test_a_prompt_cache_that_gives_nothing_leaves_the_row_and_exits_3(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "r.json"
    loops = {"server": {"forgets": True}}
    assert fake(tmp_path, "--prompt-cache", "--path", "server", "--json", str(file), loops=loops) == 3
    out, err = capsys.readouterr()
    assert "no token of a prompt came from the prompt cache" in one_line(err)
    assert "failed: RunError: no token of a prompt came from the prompt cache" in out
    assert json.loads(file.read_text())["rows"][0]["ttft_warm_ms"] is None


def test_a_loop_of_links_is_refused(tmp_path: Path, capsys: Capture) -> None:
    link = tmp_path / "loop.csv"
    link.symlink_to(link.name)
    assert fake(tmp_path, "--csv", str(link)) == 2
    assert "cannot be written" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("label", ["two\nlines", "\x1b[31mred", "cr\rcr", 'a,b"c'])
def test_a_label_is_one_line_in_the_table_and_itself_in_the_records(
    label: str, tmp_path: Path, capsys: Capture
) -> None:
    rows, record = tmp_path / "rows.csv", tmp_path / "bench.json"
    options = ("--path", "cli", "--label", label, "--csv", str(rows), "--json", str(record))
    assert fake(tmp_path, *options) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert f"{printable(label)}: ctx 100: prompt 100 tokens" in out
    with rows.open(newline="") as stream:
        assert [row["label"] for row in csv.DictReader(stream)] == [label]
    assert json.loads(record.read_text())["rows"][0]["label"] == label


def test_a_fake_rig_needs_no_mlx(tmp_path: Path) -> None:
    file = write_script(tmp_path / "rig.json")
    code = (
        "import sys; from mlxcel_engine.cli.main import main; "
        f"main(['bench', '--fake-path', {str(file)!r}, '--ctx', '9', '-n', '2']); "
        "print([m for m in sys.modules if m.split('.')[0] in ('mlx', 'mlx_lm')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_does_not_change_the_exit_code(tmp_path: Path) -> None:
    file = write_script(tmp_path / "rig.json")
    code = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for option in ((), ("--json", "-")):
        reading, writing = os.pipe()
        os.close(reading)
        arguments = [sys.executable, "-c", code, "bench", "--fake-path", str(file), "--ctx", "9", *option]
        done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writing)
        assert done.returncode == 0
        assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("quick_probe")
def test_real_loops_generate_the_same_tokens(checkpoint: str, capsys: Capture) -> None:
    assert main(["bench", "-m", checkpoint, "--ctx", "40", "-n", "8", "--prefill-chunk", "16", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    rows = [row for line in out.splitlines() for row in BenchRecord.model_validate_json(line).rows]
    assert [row.path for row in rows] == ["cli", "mlx-server", "engine", "server"]
    assert len({row.token_hash for row in rows}) == 1
    assert all((row.prompt_tokens, row.tokens, row.chunk) == (40, 8, 16) for row in rows)
    assert all(row.decode_tok_s and row.ttft_ms and row.limit_pct and row.peak_memory_bytes for row in rows)
    assert "tiny-llama: llama, float32, unquantized weights" in err


@pytest.mark.usefixtures("quick_probe")
def test_a_batch_of_real_loops(checkpoint: str, capsys: Capture) -> None:
    options = ("--ctx", "40", "-n", "8", "--batch", "3", "--ragged", "--decode-storage", "paged")
    assert main(["bench", "-m", checkpoint, *options, "--json", "-"]) == 0
    records = [BenchRecord.model_validate_json(line) for line in capsys.readouterr().out.splitlines()]
    (missing,) = records[0].unmeasured
    assert (missing.path, missing.reason) == ("cli", "it decodes one stream")
    theirs, engine, server = (record.rows[0] for record in records[1:])
    assert theirs.token_hash == engine.token_hash == server.token_hash
    for row in (engine, server):
        assert (row.storage, row.tokens) == ("paged", 24)
        assert (row.attention_calls or 0) > 0


@pytest.mark.usefixtures("quick_probe")
def test_the_invariant_mode_is_measured_beside_the_normal_one(checkpoint: str, capsys: Capture) -> None:
    shape = ("--invariant", "--invariant-shape", "2,16", "--path", "engine", "--path", "server")
    assert main(["bench", "-m", checkpoint, "--ctx", "40", "-n", "8", *shape, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    records = [BenchRecord.model_validate_json(line) for line in out.splitlines()]
    rows = {row.path: row for record in records for row in record.rows}
    assert list(rows) == ["engine", "server", "engine-invariant", "server-invariant"]
    assert [row.chunk for row in rows.values()] == [40, 40, 16, 16]
    assert len({row.token_hash for row in rows.values()}) == 1
    assert {record.config.invariant for record in records} == {"2,16"}
    assert "prompt 40 tokens in chunks of 40 (engine-invariant: 16, server-invariant: 16), 8 new tokens" in err


def test_cli_alone_has_no_batch(checkpoint: str, capsys: Capture) -> None:
    assert main(["bench", "-m", checkpoint, "--path", "cli", "--batch", "2"]) == 2
    assert "cli: it decodes one stream" in one_line(capsys.readouterr().err)


def test_a_family_that_cannot_page_is_refused(tmp_path: Path, capsys: Capture) -> None:
    folder = str(write_checkpoint(tmp_path / "mamba", "mamba"))
    assert main(["bench", "-m", folder, "--ctx", "8", "-n", "2", "--decode-storage", "paged"]) == 2
    assert "--decode-storage paged: engine: no paged KV for this family" in one_line(capsys.readouterr().err)
