"""The tables at 80 and 200 columns and in a pipe, the marks, the summary, and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import StringIO
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlxcel_engine.engine.sampling import GREEDY, ResolvedSampling, SamplingConfig
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import path_makers
from mlxcel_engine.prompts import Prompt
from mlxcel_engine.records.parity import ParityRecord
from mlxcel_engine.report.parity_svg import parity_svg
from mlxcel_engine.report.parity_table import print_parity
from mlxcel_engine.report.sparkline import scale, sparkline
from tests.faults import FaultyEngine, Heard, here
from tests.loaded import tiny_loaded


@pytest.fixture(scope="module")
def record() -> ParityRecord:
    """Two cases, two prompts, a fault, and every diagnosis."""
    makers = path_makers(4)
    cases = [Case("greedy", GREEDY), Case("seeded", ResolvedSampling(SamplingConfig.seeded(3)))]
    prompts = [Prompt(name, name * 40, tuple(range(3, length)), chat=False) for name, length in (("a", 9), ("b", 30))]
    paths = [makers["cli"](), makers["mlx-server"](), FaultyEngine(1.3), makers["mlx-batch-4"]()]
    options = ParityOptions(24, 16, locate=True, bisect=True, teacher_forced=True)
    loaded = tiny_loaded()
    return run_parity(here(), loaded, cases, prompts, paths, options, Heard(), lambda _: None).record


def shown(record: ParityRecord, width: int | None, encoding: str = "utf-8") -> list[str]:
    """The lines on a terminal of a width, or in a pipe."""

    class Stream(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]  # a terminal has one, a StringIO none
            return encoding

    stream = Stream()
    console = Console(
        file=stream, width=width or 100_000, force_terminal=width is not None, color_system=None, highlight=False
    )
    print_parity(record, console)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_gets_lines_that_fit_and_whole_words_in_the_columns(width: int, record: ParityRecord) -> None:
    lines = shown(record, width)
    assert max(map(len, lines)) <= width
    for pair in ("cli - mlx-server", "cli - engine", "cli - mlx-batch-4"):
        assert sum(pair in line and ("identical" in line or "diverged at" in line) for line in lines) >= 4
    text = " ".join(" ".join(lines).split())
    for said in ("mlx-lm BatchKVCache; prompt [0,5)+[5,6)", "layer 1 differs first", "agrees", "up to 4 rows"):
        assert said in text


def test_a_pipe_gets_one_plain_line_a_row(record: ParityRecord) -> None:
    lines = shown(record, None)
    assert not any("\x1b" in line or line.endswith(" ") or "─" in line for line in lines)
    rows = [line for line in lines if line.startswith("cli - engine") and "diverged at" in line and ":" not in line]
    assert len(rows) == 4
    evidence = [line for line in lines if line.startswith("mlx-batch-4")]
    assert all("3 of 3 neighbours joined" in line for line in evidence)


def test_the_summary_counts_the_prompts_of_each_pair(record: ParityRecord) -> None:
    lines = shown(record, None)
    at = next(number for number, line in enumerate(lines) if line.startswith("case "))
    summary = [" ".join(line.split()) for line in lines[at + 1 :]]
    assert len(summary) == 6
    assert summary[0] == "greedy cli - mlx-server 2 2 identical 2 0 -"
    first = min((r.index, r.prompt) for r in record.rows if r.case == "greedy" and r.right == "engine" and r.index)
    assert summary[1].startswith("greedy cli - engine 2 2 diverged 0 ")
    assert summary[1].endswith(f"{first[0]} ({first[1]})")


def test_an_incomplete_record_says_so(record: ParityRecord) -> None:
    cut = record.model_copy(update={"complete": False, "rows": record.rows[:2], "streams": record.streams[:3]})
    assert any("incomplete" in line for line in shown(cut, 80))
    assert not any("incomplete" in line for line in shown(record, 80))


def test_a_terminal_without_unicode_gets_marks_in_ascii(record: ParityRecord) -> None:
    for line in shown(record, None, "ascii"):
        if line.startswith(("cli - ", "differences", "  each layer")):
            assert line.isascii() or "'" in line


def test_what_others_wrote_does_nothing_to_a_terminal_nor_to_the_picture(record: ParityRecord) -> None:
    """Names of prompts and paths, reasons and notes may hold markup, emoji codes and control characters."""
    odd, meant = "[/x] [bold]y :smile: \x1b[31mred\x1b[0m\x00", "[/x] [bold]y :smile: red\\x00"

    def renamed(item: Any, *names: str) -> Any:
        return item.model_copy(update=dict.fromkeys(names, odd))

    rows = [renamed(row, "prompt", "right", "reason") for row in record.rows]
    streams = [renamed(stream, "prompt", "path") for stream in record.streams]
    streams[1] = renamed(streams[1], "invalid")
    forced = [renamed(row, "prompt", "left", "reference") for row in record.forced]
    config = record.config.model_copy(update={"prompts": [renamed(one, "name") for one in record.config.prompts]})
    strange = record.model_copy(update={"rows": rows, "streams": streams, "forced": forced, "config": config})
    for width in (None, 200):
        text = " ".join("\n".join(shown(strange, width)).split())
        assert "\x1b" not in text
        assert "\x00" not in text
        for said in (f"cli - {meant}", f"invalid: {meant}", f"greedy, {meant} (6 tokens, raw)"):
            assert said in text
    ET.fromstring(parity_svg(strange))


def test_a_record_read_back_looks_the_same(record: ParityRecord) -> None:
    again = ParityRecord.model_validate_json(record.model_dump_json())
    assert shown(again, None) == shown(record, None)


def test_the_picture_is_whole_svg_without_anything_from_the_web(record: ParityRecord) -> None:
    svg = parity_svg(record)
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(root.itertext()).replace("\xa0", " ")
    for said in ("mlxcel-engine parity", "cli - mlx-batch-4", "diverged at", "█", "layer 1 differs first"):
        assert said in text
    assert "url(http" not in svg
    assert svg.count("http") == svg.count("http://www.w3.org")


@pytest.mark.parametrize(
    ("value", "mark"),
    [(0, "·"), (1e-12, "▁"), (1e-7, "▁"), (2e-7, "▂"), (1e-4, "▄"), (0.5, "█"), (7, "█"), (inf, "█"), (nan, "█")],
)
def test_marks_by_hand(value: float, mark: str) -> None:
    assert sparkline([value], 10) == mark
    assert sparkline([value], 10, ascii_only=True).isascii()


@given(st.lists(st.floats(0, 10), max_size=60), st.integers(1, 40))
def test_no_mark_hides_a_larger_value(values: list[float], width: int) -> None:
    marks = sparkline(values, width)
    assert len(marks) == min(len(values), width)
    assert not values or max(marks) == sparkline([max(values)], 1) or sparkline([max(values)], 1) in marks
    assert sparkline(values, len(values) or 1) == "".join(sparkline([value], 1) for value in values)


def test_the_scale_names_its_ends() -> None:
    assert scale() == "· is 0, ▁ at most 1e-07, one mark a decade, █ 1 or more"
    assert scale(ascii_only=True) == ". is 0, 1 at most 1e-07, one mark a decade, 8 1 or more"
