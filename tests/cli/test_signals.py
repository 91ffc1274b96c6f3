"""Ctrl-C and its relatives are one line, from the first import on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import one_line

# A module that is imported early and takes its time, in the place of a slow disk.
SLOW = "import time, pathlib; pathlib.Path({mark!r}).touch(); time.sleep(60)"
# One that turns what is raised meanwhile into an error of its own, as some extension modules do.
DEAF = "try:\n    {slow}\nexcept BaseException:\n    raise ImportError from None"


@pytest.mark.parametrize("module", [SLOW, DEAF.format(slow=SLOW)], ids=["slow", "deaf"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_imports_is_one_line(
    number: signal.Signals, code: int, module: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "typer.py").write_text(module.format(mark=str(mark)))
    package = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), package])}
    command = [sys.executable, "-m", "mlxcel_engine", "--version"]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.stderr is not None
        said = one_line(process.stderr.read())
    assert process.returncode == code
    assert said == ("error: interrupted" if number == signal.SIGINT else "error: stopped by SIGTERM")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    code = (
        "import os, signal; from mlxcel_engine.cli.signals import stopping\n"
        "with stopping(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    )
    shell = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-c", code]
    assert subprocess.run(shell, check=False).returncode == 0
