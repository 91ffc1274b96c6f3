"""A run ends with everything that it started: after a time-out, after our own death, and after its own end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlxcel_engine.rounds import process as module
from mlxcel_engine.rounds.process import run_process
from tests.rounds.fakes import install_fake_bench, wait_until_gone


def wait_for_pids(log: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) >= count:
            return [int(line.split()[0]) for line in lines]
        time.sleep(0.02)
    raise AssertionError(f"{log} did not get {count} lines")


def test_output_and_exit_code_come_back() -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)"
    done = run_process([sys.executable, "-c", script], os.environ, 60)
    assert (done.exit_code, done.stdout, done.stderr) == (5, "out\n", "err\n")
    done = run_process([sys.executable, "-c", "import os; os.write(1, b'\\xff')"], os.environ, 60)
    assert (done.exit_code, done.stdout) == (0, "�")


def test_a_signal_shows_in_the_exit_code_and_a_missing_program_in_the_output() -> None:
    done = run_process([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], os.environ, 60)
    assert done.exit_code == 128 + signal.SIGSEGV
    done = run_process(["/no/such/program"], os.environ, 60)
    assert done.exit_code == 127
    assert "/no/such/program: No such file" in done.stderr


def test_a_time_out_ends_the_whole_process_group_and_keeps_what_was_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {**os.environ, "FAKE_MODE": "hang", "FAKE_LOG": str(log)}
    done = run_process([str(install_fake_bench(tmp_path)), "bench"], environment, 3)
    assert done.exit_code is None
    assert "about to hang" in done.stderr
    pids = wait_for_pids(log, 2)
    assert wait_until_gone(pids)


def test_what_a_run_leaves_behind_is_ended_and_does_not_hold_us_up(tmp_path: Path) -> None:
    leave = (
        "import subprocess, sys; left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(left.pid)"
    )
    done = run_process([sys.executable, "-c", leave], os.environ, 60)
    assert done.exit_code == 0
    assert done.wall_s < 60
    assert wait_until_gone([int(done.stdout)])


def test_the_run_ends_when_we_are_killed_outright(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "import os, sys; from mlxcel_engine.rounds.process import run_process; "
        f"run_process([{str(install_fake_bench(tmp_path))!r}], os.environ, 600)"
    )
    environment = {**os.environ, "FAKE_MODE": "hang", "FAKE_LOG": str(log)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as us:
        pids = wait_for_pids(log, 2)
        us.send_signal(signal.SIGKILL)
    assert wait_until_gone(pids)


# Writes more than a run may, and so is ended at this place however busy the machine is.
FLOOD = "\nprint('x' * 1000, flush=True)\ntime.sleep(600)"
BURN = f"import time\nwhile time.process_time() < 0.4: pass\nprint('burnt'){FLOOD}"
LEAVE = (
    "import subprocess, sys, time\n"
    "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)\n"
    f"print(left.pid){FLOOD}"
)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may write 100 bytes."""
    monkeypatch.setattr(module, "STDOUT_LIMIT", 100)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("wrapper", [(), ("sh", "-c", '"$@" & wait', "sh")], ids=["itself", "under a script"])
def test_the_cpu_time_of_a_run_that_was_ended_is_ours(wrapper: tuple[str, ...]) -> None:
    if wrapper and not psutil.LINUX:
        pytest.skip("only Linux lets us wait for the children of a child")
    before = os.times()
    done = run_process([*wrapper, sys.executable, "-c", BURN], os.environ, 60)
    after = os.times()
    assert (done.flooded, done.stdout.split("\n")[0]) == (True, "burnt")
    ours = after.children_user + after.children_system - before.children_user - before.children_system
    assert ours >= 0.4


@pytest.mark.usefixtures("little")
def test_what_left_the_process_group_is_ended_too() -> None:
    done = run_process([sys.executable, "-c", LEAVE], os.environ, 60)
    assert done.flooded
    assert wait_until_gone([int(done.stdout.split("\n")[0])])


def test_a_run_that_writes_without_end_is_ended_and_its_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STDOUT_LIMIT", 300_000)
    flood = "import sys\nwhile True: sys.stdout.write('{\\n' * 1000)"
    done = run_process([sys.executable, "-c", flood], os.environ, 60)
    assert done.flooded
    assert done.exit_code == 128 + signal.SIGKILL
    assert done.stdout.endswith("{\n{\n")
    assert len(done.stdout) == 300_000


def test_of_errors_the_end_is_kept_and_they_end_nothing() -> None:
    chatty = "import sys; sys.stderr.write('x' * 3_000_000 + 'the end'); print('out')"
    done = run_process([sys.executable, "-c", chatty], os.environ, 60)
    assert (done.exit_code, done.stdout, done.flooded) == (0, "out\n", False)
    assert done.stderr.endswith("xthe end")
    assert len(done.stderr) == module.STDERR_KEPT


def test_a_leash_that_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    script = "import os, signal, time; print(os.getpid(), flush=True); os.kill(os.getppid(), 9); time.sleep(600)"
    done = run_process([sys.executable, "-c", script], os.environ, 60)
    assert done.exit_code == 128 + signal.SIGKILL
    assert wait_until_gone([int(done.stdout)])
