"""An output file that is claimed before the work starts and replaced whole each time it is written, or stdout."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType


class OutputFile:
    """Where a record goes: a path, ``-`` for stdout (written once, when the work is done), or None for nowhere.

    A context manager around the work.

    A new file is created at once, empty and locked, so that nobody else takes the name and a folder that cannot be
    written is found out before an hour of work; it is removed again if nothing was written. An empty file that nobody
    holds is one that a killed run left, and free. Each :meth:`write` replaces the file atomically; through a symbolic
    link, its target.
    """

    def __init__(self, path: str | None, *, force: bool) -> None:
        """Claim ``path``.

        Raises:
            UsageError: it exists and holds something (``force`` replaces it), is in use, or cannot be written.

        """
        self.is_stdout = path == "-"
        self.wanted = path is not None
        self._last = ""
        self._path = None if path is None or self.is_stdout else Path(os.path.realpath(path))
        self._claim: int | None = None
        if self._path is None:
            return
        try:
            if self._path.exists() and not self._path.is_file():
                raise UsageError(f"{path} is not a regular file; give another file, or - for stdout")
            if not (force and self._path.is_file()):
                self._claim = _claim(self._path)
            elif not os.access(self._path.parent, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except FileExistsError:
            raise UsageError(f"{path} exists; give another file, or --force to replace it") from None
        except BlockingIOError:
            raise UsageError(f"{path} is in use by another run; wait for it, or give another file") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); give another file") from None

    def write(self, text: str) -> None:
        """Replace the content by ``text``; for stdout, keep it until the work is done."""
        self._last = text
        if self._path is not None:
            temporary = self._path.with_name(f".mlxcel-{os.getpid()}.tmp")
            try:
                with temporary.open("w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_stdout and error is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(self._last.encode())  # UTF-8, as a file gets it, whatever a terminal takes
            sys.stdout.buffer.flush()
        if self._claim is not None:
            if self._path is not None and not self._last:
                self._path.unlink(missing_ok=True)
            os.close(self._claim)


def _claim(path: Path) -> int:
    """Create ``path``, or take over an empty file, and lock it until the descriptor that is returned is closed."""
    if path.exists() and path.stat().st_size:
        raise FileExistsError
    claim = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(claim), path.stat()):
            raise FileExistsError  # another run wrote it just now
    except OSError:
        os.close(claim)
        raise
    return claim
