"""Ctrl-C, SIGTERM and a terminal that is gone end the work in order: what was claimed is given back."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Raised where a signal finds us; no :class:`Exception`, so that nothing takes it for a failure of the work.

    ``exit_code`` is a shell's for the signal; ``kept`` says what is left of the work and how to go on.
    """

    def __init__(self, number: int, kept: str = "") -> None:
        self.number, self.exit_code = number, 128 + number
        how = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
        super().__init__(f"{how}; {kept}" if kept else how)


@contextmanager
def stopping() -> Iterator[None]:
    """Raise :class:`Stopped` on a signal meanwhile; one that is ignored, as under ``nohup``, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in taken:
            signal.signal(number, _stop)
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _stop(number: int, frame: object) -> None:  # noqa: ARG001 - what a handler is given
    raise Stopped(number)
