"""The Makefile's GPU gate, with an ``nvidia-smi`` and tools of the test's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LISTED = "GPU 0: A Model (UUID: GPU-1)"


def write_program(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def gate(folder: Path, nvidia_smi: str, python: str = "exit 0", after: str = "") -> subprocess.CompletedProcess[str]:
    """Run it in an environment whose tests say how they were called, and then do ``after``."""
    write_program(folder / "path" / "nvidia-smi", nvidia_smi)
    write_program(folder / "venv" / "bin" / "python", python)
    write_program(folder / "venv" / "bin" / "pytest", f'echo "pytest $* on $MLXCEL_DEVICE"\n{after}')
    (folder / "venv" / ".installed").touch()
    environment = {**os.environ, "PATH": f"{folder / 'path'}:{os.environ['PATH']}"}
    command = ["make", "--silent", "verify-test-cuda", f"VENV={folder / 'venv'}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("nvidia_smi", ["exit 9", "echo No devices were found", "exit 0"])
def test_without_a_gpu_it_says_so_and_exits_2(nvidia_smi: str, tmp_path: Path) -> None:
    done = gate(tmp_path, nvidia_smi)
    assert (done.returncode, done.stdout) == (
        2,
        "no NVIDIA GPU here: nvidia-smi lists none; make verify runs on the CPU\n",
    )


def test_an_mlx_without_cuda_is_refused(tmp_path: Path) -> None:
    done = gate(tmp_path, f"echo '{LISTED}'", python="exit 1")
    assert done.returncode == 2
    assert "has no CUDA" in done.stdout
    assert "on gpu" not in done.stdout


def test_on_a_gpu_it_runs_the_default_and_the_checkpoint_tests(tmp_path: Path) -> None:
    done = gate(tmp_path, f"echo '{LISTED}'")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "pytest  on gpu\npytest -m checkpoint on gpu\n"


def test_a_test_that_fails_ends_it(tmp_path: Path) -> None:
    done = gate(tmp_path, f"echo '{LISTED}'", after="exit 1")
    assert done.returncode == 2
    assert done.stdout == "pytest  on gpu\n"
