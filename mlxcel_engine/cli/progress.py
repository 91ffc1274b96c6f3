"""Progress on stderr: a bar on a terminal, a plain line per phase elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mlxcel_engine.printable import printable

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.progress import TaskID


class RunProgress:
    """Shows one phase at a time; implements :class:`~mlxcel_engine.parity.run.Observer`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
        )
        # Few refreshes: they take time from the run that is timed.
        bars = Progress(*columns, console=console, transient=True, refresh_per_second=2)
        self._bars = bars if console.is_terminal else None
        self._task: TaskID | None = None
        self._total: int | None = None

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def phase(self, text: str, total: int | None = None) -> None:
        """Begin a phase of ``total`` units, or of unknown length."""
        text = printable(text)
        if self._bars is None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._total = total
        self._task = self._bars.add_task(text, total=total, done="")

    def path_started(self, case: str, prompt: str, path: str, max_tokens: int) -> None:
        """See :meth:`Observer.path_started`."""
        self.phase(f"{case}, {prompt}: {path}", max_tokens)

    def token(self, count: int) -> None:
        """See :meth:`Observer.token`."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=count, done=f"{count}/{self._total}")
