"""Ctrl-C, SIGTERM and a terminal that is gone end the work in order: what was claimed is given back."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Raised where a signal finds us; no :class:`Exception`, so that nothing takes it for a failure of the work.

    ``exit_code`` is a shell's for the signal; ``kept`` says what is left of the work and how to go on.
    """

    def __init__(self, number: int, kept: str = "") -> None:
        self.number, self.exit_code = number, 128 + number
        how = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
        super().__init__(f"{how}; {kept}" if kept else how)


def raise_stopped(number: int, frame: object) -> None:  # noqa: ARG001 - what a handler is given
    """Raise :class:`Stopped`, so that what was claimed is given back."""
    raise Stopped(number)


def end_at_once(number: int, frame: object) -> None:  # noqa: ARG001 - what a handler is given
    """Say so in a line and end the process, which holds nothing yet.

    An exception does not get through every import: extension modules turn it into an error of their own.
    """
    stopped = Stopped(number)
    with suppress(OSError):
        os.write(2, f"error: {stopped}\n".encode())
    os._exit(stopped.exit_code)


@contextmanager
def stopping(handler: Callable[[int, object], None] = raise_stopped) -> Iterator[None]:
    """Let ``handler`` take the signals meanwhile; one that is ignored, as under ``nohup``, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number, old in before.items() if old not in (signal.SIG_IGN, None)]
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
