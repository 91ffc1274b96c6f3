"""The memory bandwidth probe: how fast a buffer larger than the last-level cache is read, and copied."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import psutil

from mlxcel_engine.records.bench import BandwidthProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.device import Device

_TIMES, _SECONDS = 7, 1.0  # at least as many runs, for at least as long: a busy machine must not spoil them all
_COLUMNS = 4096
_BUFFER = {"cpu": 2**28, "gpu": 2**31}  # bytes, unless the cache is so large that it needs more


def probe_bandwidth(device: Device, dtype: str, clock: Callable[[], float] = time.perf_counter) -> BandwidthProbe:
    """Time a matrix-vector product over a large matrix of ``dtype``, which is how decode reads weights, and a copy."""
    cache = last_level_cache()
    size = min(max(_BUFFER[device], 4 * (cache or 0)), psutil.virtual_memory().available // 8)
    kind: mx.Dtype = getattr(mx, dtype)
    rows = size // (_COLUMNS * kind.size)
    matrix = _fill(rows, kind)
    vector = mx.ones((_COLUMNS,), dtype=kind)
    mx.eval(matrix, vector)
    read = [matrix.nbytes / seconds / 1e9 for seconds in _times(lambda: matrix @ vector, clock)]
    copy = [2 * matrix.nbytes / seconds / 1e9 for seconds in _times(lambda: matrix + 0, clock)]
    return BandwidthProbe(
        device=device,
        dtype=dtype,
        buffer_bytes=matrix.nbytes,
        cache_bytes=cache,
        read_gb_s=max(read),
        copy_gb_s=max(copy),
        read_samples=read,
        copy_samples=copy,
    )


def _fill(rows: int, kind: mx.Dtype) -> mx.array:
    """A matrix ``[rows, 4096]`` of ``kind`` whose pages are all written, and differ as far as ``kind`` tells them."""
    first = mx.random.uniform(shape=(1, _COLUMNS), key=mx.random.key(0), dtype=kind)
    return first + (mx.arange(rows) / rows).astype(kind)[:, None]


def _times(work: Callable[[], mx.array], clock: Callable[[], float]) -> list[float]:
    """Seconds that ``work`` took, each time, after one run that is not counted."""
    mx.eval(work())
    seconds: list[float] = []
    while len(seconds) < _TIMES or sum(seconds) < _SECONDS:
        start = clock()
        mx.eval(work())
        seconds.append(clock() - start)
    return seconds


def last_level_cache() -> int | None:
    """Bytes of the processor's last-level cache, or None where the system does not tell."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "hw.l2cachesize"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return int(told) if told.isdigit() else None
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    kilobytes = [int(size[:-1]) for size in sizes if size.endswith("K") and size[:-1].isdigit()]
    return max(kilobytes) * 1024 if kilobytes else None
