"""The rounds file: a header line, then a line a run, each flushed to the disk as it comes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.rounds import ArmConfig, RoundsHeader, Run
from mlxcel_engine.rounds.contents import Contents, parse_contents

if TYPE_CHECKING:
    from types import TracebackType


def read_journal(path: str) -> Contents:
    """Read a rounds file; a last line without an end, which a killed run leaves, does not count.

    Raises:
        UsageError: it cannot be read, is no rounds file, is one of another version, or has a line that cannot be or
            repeats another; the line is named.

    """
    return parse_contents(path, _read(path))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give a file that rounds --out wrote") from None


class Journal:
    """A rounds file that is being written; a context manager. Nobody else can write to it meanwhile.

    ``header`` is the one in the file, ``runs`` are those that it held when it was opened, ``torn`` says that a last
    line without an end was dropped then.
    """

    def __init__(self, path: str, header: RoundsHeader, *, resume: bool, force: bool) -> None:
        """Open ``path``: a new file, or with ``resume`` one that begins with the same configuration.

        Raises:
            UsageError: it exists and is not resumed (``force`` replaces it), is foreign or in use, or its
                configuration or order of runs is another one; the first difference is named.

        """
        self._path, self._file, self.torn = path, _open(path, resume=resume, force=force), False
        try:
            self.header, self.runs = self._begin(header, resume)
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self, header: RoundsHeader, resume: bool) -> tuple[RoundsHeader, tuple[Run, ...]]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self._path} is in use by another run; wait for it, or give another file") from None
        data = _read(self._path) if resume else b""
        if data.rstrip(b"\0\n"):
            contents = parse_contents(self._path, data)
            _same_config(self._path, contents.header, header)
            os.ftruncate(self._file, contents.size)
            self.torn = contents.torn
            return contents.header, contents.runs
        os.ftruncate(self._file, 0)
        self._append(header.model_dump_json())
        return header, ()

    def append(self, run: Run) -> None:
        """Add one run; it is on the disk when this returns."""
        self._append(run.model_dump_json())

    def _append(self, line: str) -> None:
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def _open(path: str, *, resume: bool, force: bool) -> int:
    if Path(path).exists() and not Path(path).is_file():
        raise UsageError(f"{path} is not a regular file; give another file")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if resume or force else os.O_EXCL)
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        raise UsageError(f"{path} exists; go on with --resume, replace it with --force, or give another file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); give another file") from None


def _same_config(path: str, before: RoundsHeader, now: RoundsHeader) -> None:
    if before.order != now.order:
        orders = f"{before.order} there, {now.order} here"
        raise UsageError(f"{path} was begun with another order of runs: {orders}; give another file")
    for name in type(now.config).model_fields:
        there, here = getattr(before.config, name), getattr(now.config, name)
        if there != here:
            shown = f"{_short(there)} there, {_short(here)} here"
            raise UsageError(f"{path} was begun with another {name}: {shown}; give the same options, or another file")


def _short(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return value.text if isinstance(value, ArmConfig) else str(value)
