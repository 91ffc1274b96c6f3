"""What the host does besides our runs, by psutil."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Protocol

import psutil

from mlxcel_engine.records.rounds import HostState
from mlxcel_engine.rounds import sensors


@dataclass(frozen=True)
class Mark:
    """A moment: seconds of the clock, CPU seconds of the whole machine and of our own processes, throttle events."""

    clock: float
    machine_cpu: float
    own_cpu: float
    throttle_count: int | None


class Host(Protocol):
    """Where runs take place. Fakes stand in for it in tests."""

    def mark(self) -> Mark:
        """Begin to watch."""

    def since(self, mark: Mark) -> HostState:
        """Return what happened since ``mark``; our own finished children do not count as others."""

    def sample(self, seconds: float) -> HostState:
        """Watch the idle host for ``seconds``: with GPU use and the busiest program."""


class ThisHost:
    """The machine that we run on."""

    def mark(self) -> Mark:
        """See :meth:`Host.mark`."""
        return Mark(time.monotonic(), _machine_cpu(), _own_cpu(), sensors.throttle_count())

    def since(self, mark: Mark) -> HostState:
        """See :meth:`Host.since`."""
        now = self.mark()
        interval = max(now.clock - mark.clock, 1e-9)
        others = (now.machine_cpu - mark.machine_cpu) - (now.own_cpu - mark.own_cpu)
        memory = psutil.virtual_memory()
        return HostState(
            interval_s=round(interval, 3),
            others_cpu=round(max(others, 0.0) / interval, 3),
            busiest=None,
            load=round(os.getloadavg()[0], 2),
            memory_available_pct=round(100 * memory.available / memory.total, 1),
            swap_used_bytes=psutil.swap_memory().used,
            gpu_use_pct=None,
            throttled=sensors.throttled(mark.throttle_count),
            on_battery=sensors.on_battery(),
        )

    def sample(self, seconds: float) -> HostState:
        """See :meth:`Host.sample`."""
        before, mark = _program_cpu(), self.mark()
        time.sleep(seconds)
        state = self.since(mark)
        return state.model_copy(update={"gpu_use_pct": sensors.gpu_use_pct(), "busiest": _busiest(before)})


def _machine_cpu() -> float:
    """CPU seconds of all cores that were not idle; a guest's are counted in ``user`` already."""
    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice")))


def _own_cpu() -> float:
    """CPU seconds of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _program_cpu() -> dict[tuple[int, str], float]:
    """CPU seconds of every other process that we may look at."""
    programs: dict[tuple[int, str], float] = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and process.info["pid"] != os.getpid():
            programs[process.info["pid"], process.info["name"] or "?"] = times.user + times.system
    return programs


def _busiest(before: dict[tuple[int, str], float]) -> str | None:
    """The program that took most CPU time since ``before``; None when none took any."""
    used = {program: cpu - before.get(program, cpu) for program, cpu in _program_cpu().items()}
    (_, name), most = max(used.items(), key=lambda item: item[1], default=((0, ""), 0.0))
    return name if most > 0 else None
