"""The page of the baseline, computed from the data folder alone: findings, threshold, each cell's own tables."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.cells import CELLS, THRESHOLD_CELL, ParityCell, RoundsCell, command_line, read_parity
from benchmarks.pages import in_repository, machine_line, markdown_table
from mlxcel_engine.report.parity_table import print_parity
from mlxcel_engine.report.rounds_table import METRICS, changes, print_rounds
from mlxcel_engine.rounds.journal import read_journal
from mlxcel_engine.rounds.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.cells import Cell
    from mlxcel_engine.records.rounds import Comparison, RoundsRecord

WALL = "wall.json"  # seconds that each cell's commands took


def render(folder: Path) -> str:
    """The page of what ``folder`` holds; a cell that is not there, or not complete, is named with its command."""
    rounds = {cell.name: read_rounds(folder, cell) for cell in CELLS if isinstance(cell, RoundsCell)}
    measured = {name: record for name, record in rounds.items() if record is not None}
    parts = [
        _INTRO.format(folder=in_repository(folder)),
        _machines(folder, measured),
        _times(wall_times(folder)),
        "## Findings",
        _findings(measured),
        "## The regression threshold",
        threshold_text(measured.get(THRESHOLD_CELL)),
        *(part for cell in CELLS for part in _cell(folder, cell, measured.get(cell.name))),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def read_rounds(folder: Path, cell: RoundsCell) -> RoundsRecord | None:
    """The summary of a rounds cell that is complete, else None."""
    if not cell.done(folder / cell.file):
        return None
    contents = read_journal(str(folder / cell.file))
    return summarise(contents.header, contents.runs, None)


def finding(row: Comparison) -> str:
    """One comparison in words, with its spread and what it is worth; the ADR quotes it as it stands."""
    median, span, _, n = _figures(row)
    what = f"{METRICS[row.metric]} of {row.path} at {row.ctx}"
    return f"{row.arm} against {row.reference}, {what}: {median} ({span}, n={n}), {row.verdict}"


def threshold_text(record: RoundsRecord | None) -> str:
    """What the null arms say, in one sentence."""
    if record is None:
        return f"TBD (measured by: `python -m benchmarks.baseline --out FOLDER --only {THRESHOLD_CELL}`)"
    said = [f"{METRICS[one.metric]} {'unknown' if one.pct is None else f'{one.pct:g} %'}" for one in record.thresholds]
    return (
        f"{', '.join(said)}: the widest difference of any arm of `{THRESHOLD_CELL}` from its null arm in a single "
        "quiet round, rounded up to the next 0.5 %."
    )


def wall_times(folder: Path) -> dict[str, float]:
    """Seconds by cell, as far as they are known."""
    file = folder / WALL
    return dict(json.loads(file.read_text())) if file.exists() else {}


_INTRO = """\
# Unified engine: baseline

Tokens and speed of `cli`, `mlx-server` and this project's engine on one machine. Each cell below is one command with
its file; what is timed waits for a quiet host. How to read a comparison: [rounds](../rounds.md). `cli` and `mlx-server`
are mlx-lm's own loops; `dense`, `paged` and `server` are the scheduler (`bench --path server`). This makes the cells
that are missing, and writes this page from the files:

```console
$ python -m benchmarks.baseline --out {folder}
```
"""


def _machines(folder: Path, measured: Mapping[str, RoundsRecord]) -> str:
    """A line for each environment that the data name, with the cells that were made in it."""
    found: dict[str, list[str]] = {}
    for cell in CELLS:
        for environment in _environments(folder, cell, measured.get(cell.name)):
            cells = found.setdefault(machine_line(environment), [])
            if cell.name not in cells:
                cells.append(cell.name)
    if len(found) == 1:
        return next(iter(found))
    return "\n".join(f"- {', '.join(cells)}: {line}" for line, cells in found.items())


def _environments(folder: Path, cell: Cell, record: RoundsRecord | None) -> list[Mapping[str, object]]:
    if record is not None:
        return list(record.environment.values())
    parity = read_parity(folder / cell.file) if isinstance(cell, ParityCell) else None
    return [] if parity is None else [parity.environment.model_dump()]


def _times(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return ""
    hours = sum(seconds.values()) / 3600
    return f"The commands of {len(seconds)} cells took {hours:.1f} hours, waiting for a quiet host included."


def _findings(measured: Mapping[str, RoundsRecord]) -> str:
    rows = [
        (name, row.arm, row.reference, METRICS[row.metric], str(row.ctx), *_figures(row), row.verdict)
        for name, record in measured.items()
        for row in record.rows
        if not row.null
    ]
    if not rows:
        return "Nothing is measured yet."
    columns = ("cell", "arm", "against", "figure", "ctx", "median", "range", "95 % interval", "n", "verdict")
    return markdown_table(columns, rows)


def _figures(row: Comparison) -> tuple[str, str, str, str]:
    """Median, range, interval and number of rounds; the first three as the command's own table has them."""
    return *changes(row), str(row.n)


def _cell(folder: Path, cell: Cell, record: RoundsRecord | None) -> Sequence[str]:
    parts = [f"## {cell.name}", f"{cell.title}.", _console(command_line(cell))]
    if cell.trained is not None:
        parts += ["On the trained checkpoint:", _console(command_line(cell, cell.trained))]
    printer = _printer(folder, cell, record)
    if printer is None:
        return [*parts, "Not measured yet."]
    return [*parts, _plain(printer), f"Data: [{cell.file}]({folder.name}/{cell.file})."]


def _printer(folder: Path, cell: Cell, record: RoundsRecord | None) -> Callable[[Console], None] | None:
    """What prints the tables of a cell that is complete, as its command does."""
    if record is not None:
        return partial(print_rounds, record)
    parity = read_parity(folder / cell.file) if isinstance(cell, ParityCell) else None
    return None if parity is None else partial(print_parity, parity)


def _console(command: str) -> str:
    return f"```console\n$ {command}\n```"


def _plain(printer: Callable[[Console], None]) -> str:
    """What the command prints off a terminal."""
    stream = io.StringIO()
    printer(Console(file=stream, width=100_000, highlight=False))
    return f"```text\n{stream.getvalue().rstrip()}\n```"
