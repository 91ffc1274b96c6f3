"""Does a process that serves for long grow? Measured in one of its own: what other tests freed would hide a leak."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import psutil

from mlxcel_engine.engine.config import Storage

ROOT = Path(__file__).parents[1]
SETTLED = 2_000  # turns until everything has reached its size
LONG = 20_000  # turns of the tests that take minutes
GROWTH = 5 * 2**20  # bytes allowed in them after that


def allowed(turns: int) -> int:
    """Bytes by which ``turns`` turns may grow: the rate of the long tests."""
    return GROWTH * (turns - SETTLED) // (LONG - SETTLED)


def resident() -> int:
    """Bytes that this process holds, once what it no longer needs was given back."""
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    return int(psutil.Process().memory_info().rss)


def growth(run: Callable[[int], object], turns: int, settled: int, leak: int) -> int:
    """Let ``run`` make ``turns`` turns and return by how many bytes this process grew after the first ``settled``.

    ``leak`` bytes a turn are held on to: the negative control.
    """
    run(settled)
    before, leaked = resident(), []
    for _ in range(turns - settled):
        run(1)
        leaked.append(b"x" * leak)
    return resident() - before


def grown(module: str, storage: Storage, turns: int, settled: int = SETTLED, leak: int = 0) -> int:
    """:func:`growth` as ``serve`` of ``module`` measures it, in a new process."""
    call = f"print(serve({storage!r}, {turns}, {settled}, {leak}))"
    code = f"import mlxcel_engine; from {module} import serve; {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
