"""The rounds file: a header line, then a line a run, each flushed to the disk as it comes."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.rounds import ArmConfig, RoundsHeader, Run

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True)
class Contents:
    """What a rounds file holds. ``size`` is the length in bytes of its whole lines; beyond it is a torn one."""

    header: RoundsHeader
    runs: tuple[Run, ...]
    size: int
    torn: bool


def read_journal(path: str) -> Contents:
    """Read a rounds file; a last line without an end, which a killed run leaves, does not count.

    Raises:
        UsageError: it cannot be read, is no rounds file, or has a bad or double record; the line is named.

    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give a file that rounds --out wrote") from None
    return _parse(path, data)


def _parse(path: str, data: bytes) -> Contents:
    whole, newline, rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    try:
        header = RoundsHeader.model_validate_json(lines[0])
    except (IndexError, ValidationError):
        raise UsageError(f"{path} is no rounds file: its first line is no header; give another file") from None
    runs: list[Run] = []
    seen: set[tuple[int, str, bool]] = set()
    for number, line in enumerate(lines[1:], start=2):
        try:
            run = Run.model_validate_json(line)
        except ValidationError:
            raise UsageError(f"{path}, line {number}: no record of a run; remove the line, or start anew") from None
        key = (run.round, run.arm, run.null)
        if key in seen:
            raise UsageError(f"{path}, line {number}: repeats round {run.round + 1} of {run.arm}; remove one of them")
        seen.add(key)
        runs.append(run)
    return Contents(header, tuple(runs), len(whole) + len(newline), bool(rest))


class Journal:
    """A rounds file that is being written; a context manager. Nobody else can write to it meanwhile.

    ``header`` is the one in the file, ``runs`` are those that it held when it was opened.
    """

    def __init__(self, path: str, header: RoundsHeader, *, resume: bool, force: bool) -> None:
        """Open ``path``: a new file, or with ``resume`` one that begins with the same configuration.

        Raises:
            UsageError: it exists and is not resumed (``force`` replaces it), is foreign or in use, or its
                configuration is another one; the first difference is named.

        """
        self._path, self._file = path, _open(path, resume=resume, force=force)
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
        data = Path(self._path).read_bytes() if resume else b""
        if data.rstrip(b"\0\n"):
            contents = _parse(self._path, data)
            _same_config(self._path, contents.header, header)
            os.ftruncate(self._file, contents.size)
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
    for name in type(now.config).model_fields:
        there, here = getattr(before.config, name), getattr(now.config, name)
        if there != here:
            shown = f"{_short(there)} there, {_short(here)} here"
            raise UsageError(f"{path} was begun with another {name}: {shown}; give the same options, or another file")


def _short(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return value.text if isinstance(value, ArmConfig) else str(value)
