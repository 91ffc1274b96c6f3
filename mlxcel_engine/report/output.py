"""An output file that is claimed before the work starts and replaced whole each time it is written; and stdout."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


@contextmanager
def outliving_reader() -> Iterator[None]:
    """Go on when whoever reads stdout has left: the verdict and the exit code do not depend on it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class OutputFile:
    """Where a record goes: a path, ``-`` for stdout (written once, when the work is done), or None for nowhere.

    A context manager around the work.

    A new file is created at once, empty, so that nobody else takes the name and a folder that cannot be written
    is found out before an hour of work; it is removed again if nothing was written. Each :meth:`write` replaces
    the file atomically; through a symbolic link, its target.
    """

    def __init__(self, path: str | None, *, force: bool) -> None:
        self.is_stdout = path == "-"
        self.wanted = path is not None
        self._last = ""
        self._path = None if path is None or self.is_stdout else Path(os.path.realpath(path))
        self._claimed = False
        if self._path is None:
            return
        if self._path.exists() and not self._path.is_file():
            raise UsageError(f"{path} is not a regular file; give another file, or - for stdout")
        try:
            if not (force and self._path.is_file()):
                self._path.open("x").close()
                self._claimed = True
            elif not os.access(self._path.parent, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except FileExistsError:
            raise UsageError(f"{path} exists; give another file, or --force to replace it") from None
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
            with outliving_reader():
                sys.stdout.write(self._last)
        elif self._path is not None and self._claimed and not self._last:
            self._path.unlink(missing_ok=True)
