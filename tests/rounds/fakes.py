"""A fake bench as an interpreter, a fake host, and runs made by hand."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mlxcel_engine.records.rounds import ArmConfig, HostState, RoundsConfig, RoundsHeader, Run
from mlxcel_engine.rounds.host import Mark
from mlxcel_engine.rounds.schedule import ORDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.records.rounds import RunStatus

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def install_fake_bench(folder: Path) -> Path:
    """Put the fake into ``folder`` as an executable that runs on the tests' own interpreter."""
    source = Path(__file__).with_name("fake_bench.py").read_text().partition("\n")[2]
    script = folder / "fake-python"
    script.write_text(f"#!{sys.executable}\n{source}")
    script.chmod(0o755)
    assert shutil.which(str(script))
    return script


def state(others_cpu: float = 0.0, load: float = 0.0, throttled: bool | None = None) -> HostState:
    return HostState(
        interval_s=1.0,
        others_cpu=others_cpu,
        busiest=None,
        load=load,
        memory_available_pct=50.0,
        swap_used_bytes=0,
        gpu_use_pct=None,
        throttled=throttled,
        on_battery=None,
    )


@dataclass
class FakeHost:
    """Gives out ``before`` one after another, the last for ever; ``during`` likewise."""

    before: list[HostState] = field(default_factory=lambda: [state()])
    during: list[HostState] = field(default_factory=lambda: [state()])

    def mark(self) -> Mark:
        return Mark(0.0, 0.0, 0.0, None)

    def since(self, mark: Mark) -> HostState:
        return self.during.pop(0) if len(self.during) > 1 else self.during[0]

    def sample(self, seconds: float) -> HostState:
        return self.before.pop(0) if len(self.before) > 1 else self.before[0]


def config(
    *arms: str, rounds: int = 5, null_every_arm: bool = False, ctx: Sequence[int] = (256,), python: str | None = None
) -> RoundsConfig:
    return RoundsConfig(
        arms=[ArmConfig(name=name, flags=["--path", "cli"], variables={}, python=python) for name in arms],
        model="default",
        ctx=list(ctx),
        max_tokens=32,
        extra=[],
        rounds=rounds,
        null_every_arm=null_every_arm,
    )


def header(what: RoundsConfig) -> RoundsHeader:
    return RoundsHeader(created=CREATED, order=ORDER, config=what)


def run(
    number: int,
    arm: str,
    decode: float | None,
    *,
    null: bool = False,
    ttft: float | None = 50.0,
    path: str = "cli",
    ctx: int = 256,
    batch: int = 1,
    tokens: int = 32,
    token_hash: str = "h",
    status: RunStatus = "ok",
    busy: Sequence[str] = (),
    mlx: str = "0.32.4",
) -> Run:
    row = {
        "path": path,
        "ctx": ctx,
        "batch": batch,
        "tokens": tokens,
        "token_hash": token_hash,
        "decode_tok_s": decode,
        "ttft_ms": ttft,
    }
    lines = [{"kind": "bench", "environment": {"mlx": mlx, "mlx_lm": "0.32.2"}, "rows": [row]}]
    return Run(
        round=number,
        position=0,
        arm=arm,
        null=null,
        command=["-P"],
        started=CREATED,
        waited_s=0.0,
        wall_s=1.0,
        status=status,
        exit_code=0 if status == "ok" else 3,
        reason="" if status == "ok" else "why",
        output="",
        before=state(),
        during=state(),
        busy=list(busy),
        lines=lines if status == "ok" else [],
    )


def gone(pid: int) -> bool:
    """Whether a process ended; one that nobody has waited for yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if all(gone(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False
