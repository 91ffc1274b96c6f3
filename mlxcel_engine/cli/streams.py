"""Standard output and error that outlive their readers: the work and its exit code do not depend on who looks on."""

from __future__ import annotations

import errno
import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOBODY_READS = (errno.EPIPE, errno.EIO)  # a pipe's reader, or the terminal, is gone


class _Outliving(FileIO):
    """A standard stream that leads nowhere once it cannot be written; of stdout only a reader that left is no error."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _lead_nowhere(self.fileno())
            if self.fileno() != 2 and error.errno not in _NOBODY_READS:
                raise
            return super().write(data)


def outlive_readers() -> None:
    """Make this process's own stdout and stderr outlive their readers; those that were closed lead nowhere."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _lead_nowhere(number)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(sys.stderr, 2)


def _outliving(stream: TextIO | None, number: int) -> TextIO:
    """The same stream in the same encoding, which spells out what it lacks; None is one that was closed."""
    writer = BufferedWriter(_Outliving(number, "w", closefd=False))
    if not isinstance(stream, TextIOWrapper):
        return TextIOWrapper(writer, encoding="utf-8", errors="backslashreplace")
    stream.flush()
    by_line = stream.line_buffering or stream.write_through
    return TextIOWrapper(writer, encoding=stream.encoding, errors="backslashreplace", line_buffering=by_line)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)
