"""Makes the runs that are missing, one after another, and writes each down as it ends."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from mlxcel_engine.records.rounds import Run
from mlxcel_engine.rounds.arms import command_of, environment_of
from mlxcel_engine.rounds.hostgate import why_busy
from mlxcel_engine.rounds.measurement import GarbageError, parse_lines, parse_what_is_there
from mlxcel_engine.rounds.process import STDOUT_LIMIT, run_process
from mlxcel_engine.rounds.schedule import missing, slots_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcel_engine.records.rounds import RoundsConfig, RunStatus
    from mlxcel_engine.rounds.hostgate import HostGate
    from mlxcel_engine.rounds.journal import Journal
    from mlxcel_engine.rounds.process import Finished
    from mlxcel_engine.rounds.schedule import Slot

_KEPT_CHARACTERS = 4000
_REASON_CHARACTERS = 400


class Observer(Protocol):
    """Is told how the rounds go on."""

    def started(self, slot: Slot) -> None:
        """A run begins."""

    def waiting(self, text: str) -> None:
        """The host gate waits, and for what."""

    def finished(self, run: Run) -> None:
        """A run ended and is on the disk."""


@dataclass(frozen=True)
class Runner:
    """``environ`` is what every run inherits, ``timeout_s`` what one may take."""

    gate: HostGate
    environ: Mapping[str, str]
    timeout_s: float

    def run(self, config: RoundsConfig, journal: Journal, observer: Observer) -> list[Run]:
        """Make what the schedule has and ``journal`` lacks; returns all runs, those from before first.

        A run that fails is written down and the others go on.

        Raises:
            RunError: the host gate gave up; what was measured is in the journal.

        """
        runs = list(journal.runs)
        done = [(run.round, run.arm, run.null) for run in runs]
        for slot in missing(slots_of(config), done):
            run = self._one(config, slot, observer)
            journal.append(run)
            runs.append(run)
            observer.finished(run)
        return runs

    def _one(self, config: RoundsConfig, slot: Slot, observer: Observer) -> Run:
        arm = next(arm for arm in config.arms if arm.name == slot.arm)
        command = command_of(arm, config)
        before, busy, waited = self.gate.look(observer.waiting)
        observer.started(slot)
        started, mark = datetime.now(UTC), self.gate.host.mark()
        finished = run_process(command, environment_of(arm, self.environ), self.timeout_s)
        during = self.gate.host.since(mark)
        status, reason, lines = _outcome(finished, self.timeout_s)
        return Run(
            round=slot.round,
            position=slot.position,
            arm=slot.arm,
            null=slot.null,
            command=command[1:],
            started=started,
            waited_s=round(waited, 3),
            wall_s=round(finished.wall_s, 3),
            status=status,
            exit_code=finished.exit_code,
            reason=reason,
            output="" if status == "ok" else _kept(finished),
            before=before,
            during=during,
            busy=[
                *(f"before it, {reason}" for reason in busy),
                *(f"during it, {reason}" for reason in why_busy(during, self.gate.limits)),
            ],
            lines=lines,
        )


def _outcome(finished: Finished, timeout_s: float) -> tuple[RunStatus, str, list[dict[str, Any]]]:
    """How a run ended, why it failed, and what it measured; before a crash or a time-out, too."""
    if finished.flooded:
        return "garbage", f"it wrote more than {STDOUT_LIMIT >> 20} MiB and was ended", []
    if finished.exit_code is None:
        return "timeout", f"no end within {timeout_s:g} s", parse_what_is_there(finished.stdout)
    if finished.exit_code != 0:
        said = finished.stderr.strip().splitlines()
        last = said[-1].strip()[:_REASON_CHARACTERS] if said else "it wrote no error"
        reason = f"{_ending(finished.exit_code)}: {last}"
        return "crashed", reason, parse_what_is_there(finished.stdout)
    try:
        return "ok", "", parse_lines(finished.stdout)
    except GarbageError as error:
        return "garbage", str(error), []


def _ending(exit_code: int) -> str:
    try:
        name = signal.Signals(exit_code - 128).name
    except ValueError:
        return f"exit code {exit_code}"
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _kept(finished: Finished) -> str:
    """The end of what a run wrote, errors last."""
    return "\n".join(text[-_KEPT_CHARACTERS:].strip() for text in (finished.stdout, finished.stderr) if text.strip())
