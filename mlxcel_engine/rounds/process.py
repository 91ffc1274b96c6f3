"""One fresh process: a session of its own, a time-out, and what it wrote."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_LEASH = str(Path(__file__).with_name("leash.py"))
STDOUT_LIMIT = 32 << 20  # bytes; the records of a run are some KiB to some MiB
STDERR_KEPT = 64 << 10  # bytes, the last ones
_READ = 1 << 20  # bytes; no less than a pipe holds
_GRACE_S = 10.0  # for the leash to end what it started
_LONGEST_S = 3600.0  # that a system takes to wait at once


@dataclass(frozen=True)
class Finished:
    """``exit_code`` is None after a time-out; beyond 128, a signal ended the process.

    ``flooded``: it wrote more than :data:`STDOUT_LIMIT` to stdout, and was ended for it. ``stderr`` is the end of it.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    flooded: bool = False


def run_process(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Finished:
    """Run ``command`` to its end or for ``timeout_s``; afterwards nothing of its session is left.

    What it writes is read as it comes, and never touches the disk. A child that outlives it cannot keep us waiting.
    When this process is killed or interrupted, the run ends with it.
    """
    begun = time.monotonic()
    with _Leashed(command, environment) as run:
        ended = run.follow(begun + timeout_s)
        code = run.end()
    timed_out = not ended and not run.flooded
    return Finished(None if timed_out else code, *run.texts(), time.monotonic() - begun, run.flooded)


class _Leashed:
    """A command under the leash, and what it has written so far; a context manager that ends it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.flooded = False
        self._stdout, self._stderr = bytearray(), bytearray()
        self._gone, held = os.pipe()  # only the leash holds the other end: it tells of its end without being asked
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", _LEASH, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
                pass_fds=(held,),
            )
        finally:
            os.close(held)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._gone, selectors.EVENT_READ)
        for stream, kept in ((self._process.stdout, self._stdout), (self._process.stderr, self._stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, kept)

    def follow(self, until: float) -> bool:
        """Read what comes until the process has ended; False if that is not so by ``until``, or it wrote too much."""
        while not self.flooded and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left, _LONGEST_S)):
                if key.fd == self._gone:
                    return True
                self._read(key)
        return False

    def _read(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, _READ)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(key.fileobj)
        key.data.extend(data)
        if key.data is self._stderr:
            del key.data[:-STDERR_KEPT]
        elif len(key.data) > STDOUT_LIMIT:
            del key.data[STDOUT_LIMIT:]
            self.flooded = True

    def end(self) -> int:
        """End what is left of the run, read what it still had to say, and return its exit code as a shell gives it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # now the leash kills the run and waits for it
        with selectors.DefaultSelector() as gone:
            gone.register(self._gone, selectors.EVENT_READ)
            gone.select(_GRACE_S)
        _kill_session(self._process.pid)
        code = self._process.wait()
        for key in list(self._selector.get_map().values()):
            if key.fd != self._gone and not self.flooded:
                self._read(key)
        return code if code >= 0 else 128 - code

    def texts(self) -> tuple[str, str]:
        """What it wrote to stdout and to stderr."""
        return self._stdout.decode("utf-8", "replace"), self._stderr.decode("utf-8", "replace")

    def __enter__(self) -> _Leashed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self.end()
        self._selector.close()
        os.close(self._gone)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _kill_session(leader: int) -> None:
    """Kill the leash, if it is still there, and what left the process group of the run, but not its session."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
