"""Reads the :class:`Environment` of this process: machine, versions, device, BLAS, commit."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import psutil

from mlxcel_engine.preload import PRELOAD
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcel_engine.device import Device

_PREFIXES = ("MLX_", "MKL_", "OPENBLAS_", "OMP_", "KMP_", "VECLIB_")
_NAMES = ("MLXCEL_BLAS", "MLXCEL_DEVICE", "MLXCEL_SDPA_DETERMINISTIC", "MLXCEL_INVARIANT", "CUDA_VISIBLE_DEVICES")


def collect_environment(dtype: str, device: Device, environ: Mapping[str, str]) -> Environment:
    """Describe the machine and the software that a record is about to be made with; ``dtype`` as the model runs."""
    processor = _processor()
    return Environment(
        processor=processor,
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        mlx=metadata.version("mlx"),
        mlx_lm=metadata.version("mlx-lm"),
        transformers=metadata.version("transformers"),
        tokenizers=metadata.version("tokenizers"),
        project=__version__,
        project_commit=project_commit(Path(__file__).resolve().parent.parent),
        device=device,
        device_name=processor if device == "cpu" else str(mx.device_info().get("device_name", "gpu")),
        dtype=dtype,
        blas=PRELOAD.blas,
        blas_version=_blas_version(),
        deterministic=PRELOAD.deterministic,
        mlx_was_first=PRELOAD.mlx_was_first,
        variables=_variables(environ),
    )


def _processor() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "Apple"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def project_commit(root: Path) -> str | None:
    """The commit of the checkout in ``root``, or None where there is none; ``-dirty`` when its package was changed.

    What lies beside the package, such as the results of a measurement that goes on, changes no figure.
    """
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--verify", "HEAD")
        changed = _git(root, "diff", "--quiet", "HEAD", "--", "mlxcel_engine").returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode != 0:
        return None
    return commit.stdout.strip() + ("-dirty" if changed else "")


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=10)


def _blas_version() -> str:
    """Ask the library that provides ``cblas_sgemm`` in the global scope for its own version."""
    process = ctypes.CDLL(None)
    if hasattr(process, "mkl_get_version_string"):
        buffer = ctypes.create_string_buffer(198)
        process.mkl_get_version_string(buffer, len(buffer))
        return buffer.value.decode().strip()
    if hasattr(process, "openblas_get_config"):
        process.openblas_get_config.restype = ctypes.c_char_p
        return str(process.openblas_get_config().decode().strip())
    return "reference, as bundled with mlx" if PRELOAD.blas == "bundled" else "unknown"


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change results; a path is cut to its last component, which is what matters of it."""
    chosen = {k: v for k, v in environ.items() if k.startswith(_PREFIXES) or k in _NAMES}
    return {k: Path(v).name if v.startswith(("/", "~")) else v for k, v in sorted(chosen.items())}
