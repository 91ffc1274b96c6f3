"""Runs the command in this process or in one of its own, on a tiny checkpoint or over a fake bench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from mlxcel_engine.cli.main import main

PATHS = ["cli", "mlx-server", "engine", "dense", "paged", "cache-miss", "cache-hit", "batch-4", "mlx-batch-4"]
RUN = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"


def parity(checkpoint: str, *options: str) -> int:
    return main(["parity", "-m", checkpoint, "-p", "to be or not", "-n", "8", *options])


def rounds_arguments(fake: str, folder: Path, *options: str, a: str = "", b: str = "", rounds: int = 5) -> list[str]:
    """``rounds`` of two arms with the interpreter ``fake``, which stands for the real bench."""
    arms = ["--arm", f"a={fake} --path cli {a}", "--arm", f"b={fake} --path engine {b}"]
    size = ["--ctx", "256", "-n", "32", "--rounds", str(rounds)]
    return ["rounds", *arms, *size, "--out", str(folder / "r.jsonl"), *options]


def one_line(text: str) -> str:
    """The error line of ``text``; nothing else may look like one, and there is no traceback."""
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in text
    return lines[0]


def start(checkpoint: str, *options: str, **pipes: Any) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", RUN, "parity", "-m", checkpoint, "-p", "to be", *options]
    return subprocess.Popen(arguments, text=True, stderr=subprocess.PIPE, **pipes)


def wait_for(text: str, process: subprocess.Popen[str]) -> None:
    """Read stderr up to a line that holds ``text``."""
    assert process.stderr is not None
    while text not in (line := process.stderr.readline()):
        assert line, "it ended before it began"
