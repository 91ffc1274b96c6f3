"""One fresh process: its own process group, a time-out, and what it wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEASH = str(Path(__file__).with_name("leash.py"))


@dataclass(frozen=True)
class Finished:
    """``exit_code`` is None after a time-out; beyond 128, a signal ended the process."""

    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float


def run_process(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Finished:
    """Run ``command`` to its end or for ``timeout_s``; afterwards nothing of its process group is left.

    Its output goes to files, not pipes: a child that outlives it cannot keep us waiting. When this process is killed
    or interrupted, the run ends with it.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-I", _LEASH, *command],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
            exit_code: int | None = code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group that is dead
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        return Finished(exit_code, _text(stdout), _text(stderr), time.monotonic() - begun)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")
