"""ADR 0007: its defaults are those of this code and of mlx-lm, its types exist, its figures are those of the data."""

from __future__ import annotations

import argparse
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks.baseline_page import finding, read_rounds, threshold_text
from benchmarks.cells import CELLS, THRESHOLD_CELL, RoundsCell
from mlxcel_engine.engine import EngineConfig, LoopRule, PrefillPlan, SamplingConfig, SequenceSpec, StopRules
from mlxcel_engine.scheduler import Request, SchedulerConfig

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "adr"
PAGE = (FOLDER / "0007-unified-batch-native-engine.md").read_text()
DEFAULTS = PAGE[PAGE.index("### Where the command line") : PAGE.index("## The regression threshold")]
CLASSES = {
    cls.__name__: cls
    for cls in (EngineConfig, LoopRule, PrefillPlan, Request, SamplingConfig, SchedulerConfig, SequenceSpec, StopRules)
}
# What is no setting but a request's own matter.
NOT_SETTINGS = {"PrefillPlan": {"adopted", "boundary", "has_tail"}, "Request": {"sampling", "detokenizer", "on_token"}}
NOT_SETTINGS["SequenceSpec"] = {"sampling"}
FINDING = re.compile(r"[\w-]+ against [\w-]+, (?:decode|TTFT) of [\w-]+ at \d+: [^,]+, n=\d+\), [a-z ]*[a-z]")


def defaults_of(cls: Any) -> dict[str, Any]:
    """The fields that have a default, and it."""
    if issubclass(cls, SamplingConfig):
        return dict(cls())
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def written_defaults(text: str) -> dict[tuple[str, str], Any]:
    found = re.findall(r"`([A-Z]\w+)\.(\w+) = (.+?)`", text)
    return {(cls, name): eval(value, {"__builtins__": {}}) for cls, name, value in found}


def wrong_defaults(text: str) -> list[str]:
    """What ``text`` says of a class's default that is not so, and what it leaves out."""
    written = written_defaults(text)
    real = {
        (name, field): value
        for name, cls in CLASSES.items()
        for field, value in defaults_of(cls).items()
        if field not in NOT_SETTINGS.get(name, ())
    }
    unequal = [
        ".".join(key) for key in sorted({*written, *real}) if written.get(key, MISSING) != real.get(key, MISSING)
    ]
    required = [name for name in re.findall(r"`StopRules\.(\w+)` required", text) if name in defaults_of(StopRules)]
    return [*unequal, *required]


def test_the_defaults_are_those_of_the_code() -> None:
    assert wrong_defaults(DEFAULTS) == []
    assert "`StopRules.max_tokens` required" in DEFAULTS


@pytest.mark.parametrize(
    ("there", "instead", "named"),
    [
        ("repeat_last_n = 64", "repeat_last_n = -1", "SamplingConfig.repeat_last_n"),
        ("`StopRules.loop = None`", "off", "StopRules.loop"),
        ("`SchedulerConfig.queue = 1024`", "`SchedulerConfig.queues = 1024`", "SchedulerConfig.queues"),
        ("`StopRules.max_tokens` required", "`StopRules.loop` required", "loop"),
    ],
)
def test_a_default_that_is_another_one_or_left_out_is_found(there: str, instead: str, named: str) -> None:
    assert there in DEFAULTS
    assert named in wrong_defaults(DEFAULTS.replace(there, instead))


def test_the_order_of_the_chain_is_that_of_the_code() -> None:
    everything = SamplingConfig(
        logit_bias={1: 1.0},
        repeat_penalty=1.1,
        dry_multiplier=1.0,
        top_k=2,
        typical_p=0.5,
        top_p=0.5,
        min_p=0.1,
        xtc_probability=0.5,
        temperature=1.0,
    )
    assert f"`{', '.join(everything.order)}`" in DEFAULTS


class _ParserMadeError(Exception):
    """Leaves ``main`` once its parser is complete."""


@pytest.fixture(scope="module")
def mlx_lm_defaults() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The options of ``mlx_lm.generate`` and of ``mlx_lm.server``, and what a request to the latter leaves unset."""
    from mlx_lm import server
    from mlx_lm.generate import setup_arg_parser

    parsers: list[argparse.ArgumentParser] = []

    def keep(self: argparse.ArgumentParser) -> None:
        parsers.append(self)
        raise _ParserMadeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", keep)
        with pytest.raises(_ParserMadeError):
            server.main()
    body = re.findall(r'self\.body\.get\(\s*"(\w+)",\s*([\w.-]+)\s*\)', inspect.getsource(server.APIHandler))
    asked = {name: eval(value) for name, value in body if not value.startswith("self.")}
    return _options(setup_arg_parser()), _options(parsers[0]), asked


def _options(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return {option: action.default for action in parser._actions for option in action.option_strings}


def rows() -> list[list[str]]:
    lines = [line for line in DEFAULTS.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_mlx_lms_defaults_are_those_of_the_installed_one(
    mlx_lm_defaults: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
) -> None:
    generate, server, body = mlx_lm_defaults
    checked = 0
    for row in rows():
        if len(row) != 7:
            continue
        for column, options in ((row[1], generate), (row[2], {**server, **body, "stop": None})):
            for name, value in re.findall(r"`(-?-?[a-z_-]+) (\S+)`", column):
                assert (name, options[name]) == (name, eval(value))
                checked += 1
        if row[1] == "not there":
            word = row[0].split()[0].lower()
            assert not [name for name in (*generate, *server, *body) if word[:5] in name]
    assert checked > 25


def test_its_types_exist_in_the_package() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "mlxcel_engine").rglob("*.py"))
    table = PAGE[PAGE.index("| part | types |") : PAGE.index("- **Families.**")]
    named = set(re.findall(r"`([A-Z]\w+|finish_step)`", table))
    assert {"Engine", "PagedKv", "BatchScheduler", "finish_step"} <= named
    for name in named:
        assert re.search(rf"^(?:class|def) {name}\b|^{name} = NewType", source, re.MULTILINE), name


def results() -> list[Path]:
    return sorted((ROOT / "docs" / "benchmark_results").glob("unified-engine-baseline-*/"))


def wrong_figures(text: str, measured: set[str], complete: bool) -> list[str]:
    """The findings that ``text`` quotes and the data do not have, and what is open although all was measured."""
    quoted = [found for found in FINDING.findall(text) if found not in measured]
    return quoted + (re.findall(r"TBD \([^)]*\)", text) if complete else [])


def test_its_figures_are_those_of_the_data() -> None:
    cells = [cell for cell in CELLS if isinstance(cell, RoundsCell)]
    records = {(folder, cell.name): read_rounds(folder, cell) for folder in results() for cell in cells}
    measured = {finding(row) for record in records.values() if record is not None for row in record.rows}
    complete = bool(records) and all(record is not None for record in records.values())
    assert wrong_figures(PAGE, measured, complete) == []
    thresholds = [threshold_text(records.get((folder, THRESHOLD_CELL))) for folder in results()]
    assert any(text in PAGE for text in (*thresholds, threshold_text(None)))


def test_a_figure_that_the_data_do_not_have_is_found() -> None:
    said = "Speed: paged against dense, decode of server at 256: -1.2 % (-2.0 to +0.1, n=5), no difference."
    real = "paged against dense, decode of server at 256: -1.2 % (-2.0 to +0.1, n=5), no difference"
    assert wrong_figures(said, {real}, complete=True) == []
    assert wrong_figures(said.replace("-1.2", "+1.2"), {real}, complete=True) == [real.replace("-1.2", "+1.2")]
    assert wrong_figures("TBD (measured by: `x`)", set(), complete=True) == ["TBD (measured by: `x`)"]


def test_what_is_open_names_cells_of_the_baseline() -> None:
    for names in re.findall(r"--only ([\w -]+)`", PAGE):
        assert set(names.split()) <= {cell.name for cell in CELLS}


def test_every_record_stands_in_the_index_with_its_title_and_status() -> None:
    index = (FOLDER / "README.md").read_text()
    for number in range(1, 8):
        (file,) = FOLDER.glob(f"{number:04}-*.md")
        title, status = re.findall(r"^# \d+: (.*)\n\nStatus: ([a-z]+)", file.read_text())[0]
        assert f"| [{number:04}]({file.name}) | {title} | {status}" in index
    assert index.count("\n| [") == 7
