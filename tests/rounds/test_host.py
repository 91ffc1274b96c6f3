"""What the host tells, when it counts as busy, and how the gate waits."""

from __future__ import annotations

import os
from collections import namedtuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.errors import RunError
from mlxcel_engine.records.rounds import HostState
from mlxcel_engine.rounds.host import Mark, ThisHost
from mlxcel_engine.rounds.hostgate import HostGate, Limits, why_busy, why_wait
from mlxcel_engine.rounds.sensors import parse_mac_gpu, parse_mac_thermal, parse_nvidia
from tests.rounds.fakes import FakeHost, state

LIMITS = Limits(others_cpu=0.5, load=4.0)
CpuTimes = namedtuple("CpuTimes", "user system idle iowait guest steal")


def test_this_host_tells_what_it_can() -> None:
    seen = ThisHost().sample(0.05)
    assert seen.interval_s >= 0.05
    assert seen.others_cpu >= 0
    assert 0 < seen.memory_available_pct <= 100
    assert seen.load >= 0


def test_what_is_ours_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine worked 30 s in 10: user 20 (guest among it), system 5, steal 5; 12 of them were ours."""
    times = [CpuTimes(100, 10, 1000, 50, 7, 3), CpuTimes(120, 15, 1100, 70, 9, 8)]
    own = [os.times_result((1, 1, 50, 10, 0)), os.times_result((1, 2, 60, 11, 0))]
    clock = [5.0, 15.0]
    monkeypatch.setattr(psutil, "cpu_times", lambda: times.pop(0))
    monkeypatch.setattr("mlxcel_engine.rounds.host.os.times", lambda: own.pop(0))
    monkeypatch.setattr("mlxcel_engine.rounds.host.time.monotonic", lambda: clock.pop(0))
    host = ThisHost()
    seen = host.since(host.mark())
    assert (seen.interval_s, seen.others_cpu) == (10.0, 1.8)


def test_a_clock_that_counted_less_than_ours_is_no_negative_use(monkeypatch: pytest.MonkeyPatch) -> None:
    host = ThisHost()
    now = host.mark()
    assert host.since(Mark(now.clock - 1, now.machine_cpu + 100, now.own_cpu, None)).others_cpu == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"others_cpu": 1.02}, "other programs use 1.02 cores"),
        ({"others_cpu": 1.02, "busiest": "indexer"}, "other programs use 1.02 cores, most of it indexer"),
        ({"memory_available_pct": 2.0}, "2.0 % of the memory is available"),
        ({"gpu_use_pct": 60.0}, "the GPU is 60 % in use"),
        ({"throttled": True}, "processor or GPU are throttled"),
    ],
)
def test_each_limit_is_named(changed: dict[str, object], said: str) -> None:
    assert why_busy(state(), LIMITS) == []
    assert why_busy(state().model_copy(update=changed), LIMITS) == [said]


def test_the_load_matters_before_a_run_only_and_a_moment_tells_nothing_of_cpu_use() -> None:
    crowded = state(load=9)
    assert why_busy(crowded, LIMITS) == []
    assert why_wait(crowded, LIMITS) == ["the load is 9.0"]
    assert why_busy(state(others_cpu=2).model_copy(update={"interval_s": 0.05}), LIMITS) == []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def test_the_gate_waits_until_it_is_quiet_and_says_every_half_minute_for_what() -> None:
    told: list[str] = []
    busy = [*[state(others_cpu=1)] * 15, *[state(load=9)] * 2]
    gate = HostGate(FakeHost(before=[*busy, state()]), LIMITS, wait_s=60, clock=Clock())
    seen, reasons, waited = gate.look(told.append)
    assert (seen, reasons, waited) == (state(), [], 36.0)
    assert told == [
        "waiting for a quiet host: other programs use 1.00 cores",
        "waiting for a quiet host: the load is 9.0",
    ]


def test_the_gate_gives_up() -> None:
    gate = HostGate(FakeHost(before=[state(others_cpu=1)]), LIMITS, wait_s=20, clock=Clock())
    with pytest.raises(RunError, match=r"not quiet within 20 s \(other programs use 1.00 cores\)"):
        gate.look(lambda text: None)


def test_without_the_gate_nothing_waits_but_the_reason_is_kept() -> None:
    _, reasons, waited = HostGate(FakeHost(before=[state(others_cpu=1)]), LIMITS).look(pytest.fail)
    assert (reasons, waited) == (["other programs use 1.00 cores"], 0.0)


def test_nvidias_answers_are_read() -> None:
    assert parse_nvidia("3, Not Active, Not Active\n57, Not Active, Active\n") == (57.0, True)
    assert parse_nvidia("0, Not Active, Not Active\n") == (0.0, False)
    assert parse_nvidia("[N/A], [N/A], [N/A]\n") == (None, None)
    assert parse_nvidia("") == (None, None)


def test_macos_answers_are_read() -> None:
    accelerator = '"PerformanceStatistics" = {"Device Utilization %"=14,"Renderer Utilization %"=12}'
    assert parse_mac_gpu(accelerator) == 14.0
    assert parse_mac_gpu("") is None
    limits = "CPU_Scheduler_Limit \t= 100\n\tCPU_Available_CPUs \t= 8\n\tCPU_Speed_Limit \t= {}\n"
    assert parse_mac_thermal(limits.format(100)) is False
    assert parse_mac_thermal(limits.format(62)) is True
    assert parse_mac_thermal("Note: No thermal warning level has been recorded\n") is False
    assert parse_mac_thermal("") is None


@given(st.text(max_size=60))
def test_no_answer_of_a_tool_breaks_the_readers(text: str) -> None:
    parse_nvidia(text)
    parse_mac_gpu(text)
    parse_mac_thermal(text)


def test_a_state_goes_through_json() -> None:
    assert HostState.model_validate_json(state(1.5).model_dump_json()) == state(1.5)
