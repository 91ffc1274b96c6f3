"""The examples of docs/engine.md and docs/determinism.md run as they stand; the modules that pages name exist."""

from __future__ import annotations

import re
import threading
from ast import literal_eval
from pathlib import Path

import pytest

from mlxcel_engine.preload import PRELOAD
from tests.loaded import write_checkpoint

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "engine.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STOPS = r'("\n\n", "User:")'


def run_example(model: Path, capsys: pytest.CaptureFixture[str], stops: str = STOPS) -> tuple[list[str], list[str]]:
    """The text of each of the two rows, and how each ended."""
    example, _ = EXAMPLES
    assert STOPS in example
    example = example.replace("path/to/model", str(model)).replace(STOPS, stops)
    capsys.readouterr()
    exec(compile(example, "engine.md", "exec"), {})
    texts, ends = ["", ""], ["", ""]
    for line in capsys.readouterr().out.splitlines():
        row, _, said = line.partition(" ")
        if said.startswith("Finish("):
            ends[int(row)] = said
        elif said.startswith(("'", '"')):
            texts[int(row)] += literal_eval(said)
    return texts, ends


def test_the_example_runs_two_requests_to_their_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_checkpoint(tmp_path / "tiny")
    texts, ends = run_example(model, capsys)
    assert texts[0] != texts[1]
    assert all("max-tokens" in end for end in ends)
    stop = texts[0][len(texts[0]) // 2 :][:2]
    cut, ends = run_example(model, capsys, repr((stop,)))
    assert cut == [text.partition(stop)[0] for text in texts]
    assert f"detail='stop-string', stop_string={stop!r}" in ends[0]


def test_the_scheduler_example_streams_one_request_and_waits_for_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_checkpoint(tmp_path / "tiny")
    texts, _ = run_example(model, capsys, repr(("\n\n",)))
    example = EXAMPLES[1]
    assert len(example.splitlines()) == 15
    before = set(threading.enumerate())
    exec(compile(example.replace("path/to/model", str(model)), "engine.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith(texts[0])
    assert " length 0." in said
    assert "SchedulerMetrics(queued=0" in said
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("invariant", [True, False])
def test_the_invariant_example_prints_equal_bits_and_without_the_mode_it_does_not(
    invariant: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "determinism.md").read_text(), re.DOTALL)
    shapes = "invariant=FixedShapes(width=4, chunk=64)"
    assert shapes in example
    example = example.replace("path/to/model", str(write_checkpoint(tmp_path / "tiny")))
    capsys.readouterr()
    exec(compile(example if invariant else example.replace(shapes, "invariant=False"), "determinism.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    equal = [f"{index} True True" for index in range(16)]
    if invariant:
        assert lines == equal
    elif PRELOAD.blas == "mkl":  # others may give products as small as these the same bits in other shapes
        assert lines != equal


def test_every_module_of_the_scheduler_stands_in_its_table() -> None:
    table = PAGE[PAGE.index("| file in `scheduler/`") : PAGE.index("## The files")]
    named = set(re.findall(r"`([a-z_]+\.py)`", table))
    assert named == {file.name for file in (ROOT / "mlxcel_engine" / "scheduler").glob("*.py")} - {"__init__.py"}


def test_every_module_of_the_engine_stands_in_its_table() -> None:
    table = PAGE[PAGE.index("## The files") : PAGE.index("## Where state lives")]
    named = {Path(name).name for name in re.findall(r"`([a-z_/]+\.py)`", table)}
    assert named == {file.name for file in (ROOT / "mlxcel_engine" / "engine").rglob("*.py")} - {"__init__.py"}


def test_every_module_and_every_column_of_the_bench_stands_in_its_page() -> None:
    page = (ROOT / "docs" / "bench.md").read_text()
    modules = {file.stem for file in (ROOT / "mlxcel_engine" / "bench").glob("[a-z]*")}
    assert set(re.findall(r"`bench/([a-z]+)(?:\.py|/)`", page)) == modules
    expected = [(ROOT / "tests" / "expected" / name).read_text() for name in ("bench.out.txt", "bench_batch.err.txt")]
    headings = [re.split(r" {2,}", line) for text in expected for line in text.splitlines() if line.startswith("path ")]
    assert headings
    for column in {name for heading in headings for name in heading} - {"path", "storage"}:
        assert column in page


def packages() -> set[str]:
    """Every package of ours, as a path from the repository's root."""
    return {file.parent.relative_to(ROOT).as_posix() for file in (ROOT / "mlxcel_engine").rglob("__init__.py")}


def test_every_package_has_its_sentence_and_no_other_one() -> None:
    page = (ROOT / "docs" / "structure.md").read_text()
    named = re.findall(r"^\| `(mlxcel_engine/[a-z_/]+)` \| (.+\.) \|$", page, re.MULTILINE)
    assert {name for name, _ in named} == packages() - {"mlxcel_engine"}
    assert len(named) == len(packages()) - 1
