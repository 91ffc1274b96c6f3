"""When a host counts as busy, and the gate that waits for a quiet one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.records.rounds import HostState
    from mlxcel_engine.rounds.host import Host

_GLANCE_S, _LOOK_S, _TELL_S = 0.5, 2.0, 30.0
_TELLING_S = 0.4  # the system counts CPU time in steps of 10 ms a core; over less it tells nothing


@dataclass(frozen=True)
class Limits:
    """Beyond these a host counts as busy: others' CPU use and load in cores, memory and GPU use in percent."""

    others_cpu: float
    load: float
    memory_available_pct: float = 5.0
    gpu_use_pct: float = 20.0


def why_busy(state: HostState, limits: Limits) -> list[str]:
    """Why the host was busy over ``state``'s interval, as far as it can be told while a run of ours is on."""
    reasons: list[str] = []
    if state.others_cpu > limits.others_cpu and state.interval_s >= _TELLING_S:
        most = "" if state.busiest is None else f", most of it {state.busiest}"
        reasons.append(f"other programs use {state.others_cpu:.2f} cores{most}")
    if state.memory_available_pct < limits.memory_available_pct:
        reasons.append(f"{state.memory_available_pct:.1f} % of the memory is available")
    if state.gpu_use_pct is not None and state.gpu_use_pct > limits.gpu_use_pct:
        reasons.append(f"the GPU is {state.gpu_use_pct:.0f} % in use")
    if state.throttled:
        reasons.append("processor or GPU are throttled")
    return reasons


def why_wait(state: HostState, limits: Limits) -> list[str]:
    """Why to wait before a run: :func:`why_busy`, or a load that says that others stand in line."""
    waiting = [f"the load is {state.load:.1f}"] if state.load > limits.load else []
    return [*why_busy(state, limits), *waiting]


@dataclass(frozen=True)
class HostGate:
    """Looks at the host before each run; with ``wait_s`` above 0 it waits that long for a quiet one."""

    host: Host
    limits: Limits
    wait_s: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def look(self, tell: Callable[[str], None]) -> tuple[HostState, list[str], float]:
        """Return the host's state before a run, why it counts as busy, and the seconds that were spent waiting.

        ``tell`` gets what is waited for, at once and then every half minute.

        Raises:
            RunError: the host did not get quiet in time.

        """
        if self.wait_s <= 0:
            state = self.host.sample(_GLANCE_S)
            return state, why_busy(state, self.limits), 0.0
        begun = self.clock()
        told: float | None = None
        while True:
            state = self.host.sample(_LOOK_S)
            waited = self.clock() - begun
            reasons = why_wait(state, self.limits)
            if not reasons:
                return state, [], 0.0 if told is None else waited
            said = "; ".join(reasons)
            if waited >= self.wait_s:
                raise RunError(
                    f"the host was not quiet within {self.wait_s:g} s ({said}); end what runs beside, "
                    "raise --gate-timeout, or --host-cpu if that is how this machine always is"
                )
            if told is None or waited - told >= _TELL_S:
                tell(f"waiting for a quiet host: {said}")
                told = waited
