"""How rounds go on, on stderr: a live table on a terminal, a plain line a run elsewhere."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live

from mlxcel_engine.report.table import make_table, plain
from mlxcel_engine.rounds.measurement import Measurement, measurements
from mlxcel_engine.rounds.notes import describe_failure
from mlxcel_engine.rounds.schedule import label

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console

    from mlxcel_engine.records.rounds import Run
    from mlxcel_engine.rounds.schedule import Slot


class RoundsProgress:
    """Implements :class:`~mlxcel_engine.rounds.run.Observer`; a context manager around the runs."""

    def __init__(self, console: Console, slots: Sequence[Slot], done: Sequence[Run]) -> None:
        self._console, self._total = console, len(slots)
        self._rounds = max((slot.round for slot in slots), default=0) + 1
        self._made = dict.fromkeys((slot.label for slot in slots), 0)
        self._new: list[Run] = []
        self._measured: dict[str, list[list[Measurement]]] = {slot.label: [] for slot in slots}
        self._shown = {slot.label: ("0", "-", "-") for slot in slots}
        for run in done:
            self._add(run)
        self._state = ""
        # Few refreshes, and nothing computed in one: they take time from the run that is timed.
        live = Live(console=console, transient=True, get_renderable=self._screen, refresh_per_second=1)
        self._live = live if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, slot: Slot) -> None:
        """See :meth:`Observer.started`."""
        self._state = f"round {slot.round + 1} of {self._rounds}: {slot.label} runs"

    def waiting(self, text: str) -> None:
        """See :meth:`Observer.waiting`."""
        self._state = text
        if self._live is None:
            self._say(text)

    def finished(self, run: Run) -> None:
        """See :meth:`Observer.finished`."""
        name = label(run.arm, run.null)
        self._add(run)
        self._new.append(run)
        if run.status != "ok":
            self._say(describe_failure(run))
            for line in run.output.splitlines():
                self._say(f"  | {line}")
        elif self._live is None:
            _, last, _ = self._shown[name]
            self._say(f"round {run.round + 1} of {self._rounds}: {name}: {last}; {self._left()}")
        if run.busy:
            self._say(f"warning: {name}, round {run.round + 1}, busy host: {'; '.join(run.busy)}")

    def _left(self) -> str:
        """How many runs there are, and how long the others will take at the mean pace so far."""
        made = sum(self._made.values())
        if not self._new or made == self._total:
            return f"{made} of {self._total} runs"
        seconds = sum(run.wall_s + run.waited_s for run in self._new) / len(self._new) * (self._total - made)
        left = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
        return f"{made} of {self._total} runs, about {left} left"

    def _screen(self) -> Group:
        table = make_table(self._console, "arm", "runs", "last", "median decode tok/s", right=("runs",))
        for name, (runs, last, medians) in self._shown.items():
            table.add_row(name, runs, plain(last), plain(medians))
        return Group(table, plain(f"{self._state}; {self._left()}"))

    def _add(self, run: Run) -> None:
        """Count a run, and put into words what is shown of its arm."""
        name = label(run.arm, run.null)
        self._made[name] += 1
        measured = self._measured[name]
        if run.lines:
            measured.append(measurements(run.lines))
        last = "; ".join(_shown(one) for one in measured[-1]) if measured else "-"
        self._shown[name] = (str(self._made[name]), last, _medians(measured))

    def _say(self, text: str) -> None:
        self._console.print(plain(text), soft_wrap=True)


def _shown(one: Measurement) -> str:
    decode = "-" if one.decode_tok_s is None else f"{one.decode_tok_s:.2f}"
    ttft = "-" if one.ttft_ms is None else f"{one.ttft_ms:.0f}"
    return f"{one.path} at {one.ctx}: {decode} tok/s, TTFT {ttft} ms"


def _medians(measured: Sequence[Sequence[Measurement]]) -> str:
    cells = dict.fromkeys(one.cell for run in measured for one in run)
    speeds = {cell: [one.decode_tok_s for run in measured for one in run if one.cell == cell] for cell in cells}
    known = [[speed for speed in each if speed is not None] for each in speeds.values()]
    return " / ".join(f"{median(each):.2f}" for each in known if each) or "-"
