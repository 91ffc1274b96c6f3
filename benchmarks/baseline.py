"""The measured baseline.

    python -m benchmarks.baseline --out docs/benchmark_results/unified-engine-baseline-PROCESSOR-DATE

Runs the cells that the folder lacks, one command of ``mlxcel-engine`` after another, and writes ``FOLDER.md`` from
what is there after each of them. A cell that was cut short goes on; run again, it measures nothing. ``--only`` takes
some of them, ``--list`` says what there is and about how long it takes. To measure a cell anew, move its file away.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.baseline_page import WALL, render, wall_times
from benchmarks.cells import CELLS
from benchmarks.pages import ROOT, write_whole
from mlxcel_engine.errors import MlxcelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.cells import Cell

    Run = Callable[[Sequence[str]], int]
_FAILED, _INTERRUPTED = 3, 130


def run_command(words: Sequence[str]) -> int:
    """Run ``mlxcel-engine`` as this interpreter has it, from the repository's root."""
    return subprocess.run([sys.executable, "-m", "mlxcel_engine", *words], cwd=ROOT, check=False).returncode


def main(arguments: Sequence[str] | None = None, run: Run = run_command) -> int:
    """Make what is missing; 3 if a command failed, 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the data; the page is FOLDER.md")
    parser.add_argument("--only", nargs="+", metavar="CELL", choices=[cell.name for cell in CELLS], help="these cells")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args(arguments)
    folder = options.out.resolve()
    chosen = [cell for cell in CELLS if options.only is None or cell.name in options.only]
    try:
        if options.list:
            print(listing(folder, chosen))
            return 0
        return make(folder, chosen, run)
    except MlxcelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted; run it again to go on", file=sys.stderr)
        return _INTERRUPTED


def listing(folder: Path, cells: Sequence[Cell]) -> str:
    """A line a cell, and how long the missing ones take together."""
    done = {cell.name: cell.done(folder / cell.file) for cell in cells}
    left = sum(cell.minutes for cell in cells if not done[cell.name])
    lines = [
        f"{cell.name:<{max(map(len, done))}}  {'done' if done[cell.name] else f'{cell.minutes} min':>7}  {cell.title}"
        for cell in cells
    ]
    return "\n".join([*lines, f"missing: about {left} minutes on two cores"])


def make(folder: Path, cells: Sequence[Cell], run: Run) -> int:
    """Run each of ``cells`` that is not complete and write the page after it; goes on after one that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = [cell.name for cell in cells if not cell.done(folder / cell.file) and not _make_one(folder, cell, run)]
    _write_page(folder)
    if failed:
        print(f"error: failed: {', '.join(failed)}; what they measured stays, run this again", file=sys.stderr)
    return _FAILED if failed else 0


def _make_one(folder: Path, cell: Cell, run: Run) -> bool:
    """Run a cell's command; whether it went well."""
    words = cell.options(str(folder / cell.file))
    print(f"{cell.name} (about {cell.minutes} min): mlxcel-engine {shlex.join(words)}", file=sys.stderr, flush=True)
    begun = time.monotonic()
    try:
        return run(words) == 0
    finally:  # a run that is interrupted took its time, too
        seconds = wall_times(folder)
        seconds[cell.name] = round(seconds.get(cell.name, 0.0) + time.monotonic() - begun, 1)
        write_whole(folder / WALL, json.dumps(seconds, indent=1) + "\n")
        _write_page(folder)


def _write_page(folder: Path) -> None:
    write_whole(folder.with_name(f"{folder.name}.md"), render(folder))


def _terminate(number: int, frame: object) -> None:  # noqa: ARG001 - what a handler is given
    """Leave as on Ctrl-C, so that the command under way ends with this process."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main())
