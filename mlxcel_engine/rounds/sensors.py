"""GPU use, throttling and power, where the system tells without special rights: NVIDIA's tool, macOS, Linux."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.sw_thermal_slowdown",
    "--format=csv,noheader,nounits",
)
_MAC_GPU = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
_MAC_THERMAL = ("pmset", "-g", "therm")
_LINUX_COUNTS = "cpu[0-9]*/thermal_throttle/*_throttle_count"


def gpu_use_pct() -> float | None:
    """How busy the busiest GPU is, in percent."""
    if sys.platform == "darwin":
        return parse_mac_gpu(_ask(_MAC_GPU))
    return parse_nvidia(_ask(_NVIDIA))[0]


def throttled(count_before: int | None) -> bool | None:
    """Whether processor or GPU are slowed down, or were since :func:`throttle_count` gave ``count_before``."""
    if sys.platform == "darwin":
        return parse_mac_thermal(_ask(_MAC_THERMAL))
    now, gpu = throttle_count(), parse_nvidia(_ask(_NVIDIA))[1]
    cpu = None if now is None or count_before is None else now > count_before
    return cpu if gpu is None else bool(cpu) or gpu


def throttle_count() -> int | None:
    """How often Linux has slowed a processor core down since the start of the system."""
    files = Path("/sys/devices/system/cpu").glob(_LINUX_COUNTS)
    try:
        counts = [int(file.read_text()) for file in files]
    except (OSError, ValueError):
        return None
    return sum(counts) if counts else None


def on_battery() -> bool | None:
    """Whether the machine runs on its battery; None without one."""
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def parse_nvidia(text: str) -> tuple[float | None, bool | None]:
    """Read the (use in percent, throttled) of ``nvidia-smi``'s lines, one a GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 2]
    use = [float(row[0]) for row in rows if row[0].isdigit()]
    states = {state for row in rows for state in row[1:]} & {"Active", "Not Active"}
    return max(use, default=None), ("Active" in states) if states else None


def parse_mac_gpu(text: str) -> float | None:
    """Read the use of the GPU out of ``ioreg``'s accelerators."""
    found = re.findall(r'"Device Utilization %"=(\d+)', text)
    return max(map(float, found), default=None)


def parse_mac_thermal(text: str) -> bool | None:
    """Read whether ``pmset -g therm`` tells of a limit."""
    limits = [int(limit) for limit in re.findall(r"CPU_(?:Speed|Scheduler)_Limit\s*=\s*(\d+)", text)]
    if limits:
        return min(limits) < 100
    return False if "No thermal warning level" in text else None


def _ask(command: tuple[str, ...]) -> str:
    """What a tool of the system says; empty when it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
