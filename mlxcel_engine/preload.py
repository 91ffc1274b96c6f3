"""Settings that have to be in place before ``import mlx.core``: the BLAS, its reproducible mode, precision.

MLX's CPU wheel is linked to the reference BLAS (about 1.5 GFLOP/s in float32). The dynamic linker looks a
symbol up in the global scope first, so a faster library that is loaded with ``RTLD_GLOBAL`` before MLX takes
over ``cblas_sgemm`` and its relatives. This is the one file below the command line that reads the environment
and changes the process; everything else gets the frozen :data:`PRELOAD`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

BLAS_CHOICES = ("auto", "mkl", "openblas", "bundled")
DETERMINISTIC_SWITCH = "MLXCEL_SDPA_DETERMINISTIC"
INVARIANT_SWITCH = "MLXCEL_INVARIANT"

_MKL_RUNTIME = ("libiomp5.so", "libmkl_rt.so.3", "libmkl_rt.so.2")
_OPENBLAS_NAMES = ("libopenblas.so.0", "libopenblas.so")

# MKL documents its strict branches as giving the same bits for any alignment of the operands and number of threads.
_DETERMINISTIC_DEFAULTS = {"MKL_CBWR": "AVX2,STRICT", "MLX_ENABLE_TF32": "0"}

# Hub and tokenizer libraries must neither phone home nor write to the terminal on their own.
_QUIET_DEFAULTS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Preload:
    """What was applied before MLX was imported.

    ``blas`` is the library in use: ``mkl``, ``openblas``, ``accelerate``, ``bundled``, a file name, or ``unknown``.
    ``problem`` is a one-line reason why the request could not be met (the command line refuses to run with it),
    ``warning`` one line for stderr, ``mlx_was_first`` whether MLX had been imported before, in which case nothing
    took effect. ``invariant`` is the mode of engines that are not told otherwise; nothing has to be set for it.
    """

    blas: str
    deterministic: bool
    device: str
    mlx_was_first: bool
    problem: str | None = None
    warning: str | None = None
    invariant: bool = False


def _load_global(paths: list[str]) -> bool:
    """Load every library of ``paths`` into the global symbol scope; False when one of them cannot be."""
    try:
        for path in paths:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load_mkl() -> bool:
    """Load the ``mkl`` wheel, which installs into the environment's ``lib``, or a system MKL."""
    folder = Path(sys.prefix) / "lib"
    openmp, *names = _MKL_RUNTIME
    for name in names:
        if (folder / name).is_file() and _load_global([str(folder / openmp), str(folder / name)]):
            return True
    return any(_load_global([openmp, name]) for name in names)


def _load_openblas() -> bool:
    """Load a system OpenBLAS."""
    found = ctypes.util.find_library("openblas")
    return any(_load_global([name]) for name in (*_OPENBLAS_NAMES, found) if name)


def _choose_blas(requested: str) -> tuple[str, str | None, str | None]:
    """Load the requested BLAS; returns (name, problem, warning)."""
    if sys.platform == "darwin":
        return "accelerate", None, None  # MLX on macOS is linked to Accelerate already
    if requested == "bundled":
        return "bundled", None, None
    if requested in ("auto", "mkl") and _load_mkl():
        return "mkl", None, None
    if requested in ("auto", "openblas") and _load_openblas():
        return "openblas", None, None
    if requested == "auto":
        hint = "pip install mkl" if os.uname().machine == "x86_64" else "install libopenblas"
        return (
            "bundled",
            None,
            f"no fast BLAS found, using MLX's reference BLAS (10 to 80 times slower): {hint}",
        )
    if requested == "mkl":
        return "bundled", "MLXCEL_BLAS=mkl: MKL is not installed; pip install mkl, or MLXCEL_BLAS=auto", None
    if requested == "openblas":
        remedy = "install libopenblas (Debian: libopenblas0), or MLXCEL_BLAS=auto"
        return "bundled", f"MLXCEL_BLAS=openblas: no OpenBLAS found; {remedy}", None
    remedy = f"give one of {', '.join(BLAS_CHOICES)} or the path of a shared library with a CBLAS"
    if not Path(requested).is_file() or not _load_global([requested]):
        return "bundled", f"MLXCEL_BLAS={requested}: cannot be loaded; {remedy}", None
    if not hasattr(ctypes.CDLL(None), "cblas_sgemm"):
        return "bundled", f"MLXCEL_BLAS={requested}: has no cblas_sgemm; {remedy}", None
    return Path(requested).name, None, None


def _fix_order() -> str | None:
    """Set what fixes the order of sums, keeping what the user set; a one-line problem where that contradicts it."""
    for name, value in _DETERMINISTIC_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if os.environ["MLX_ENABLE_TF32"] != "0":
        return f"{DETERMINISTIC_SWITCH}=1 and MLX_ENABLE_TF32={os.environ['MLX_ENABLE_TF32']} exclude each other"
    branch = os.environ["MKL_CBWR"]
    if "STRICT" not in branch:
        return f"{DETERMINISTIC_SWITCH}=1 needs a strict MKL_CBWR, not {branch}; give AVX2,STRICT"
    return None


def _apply() -> Preload:
    """Read the environment once, set what MLX and BLAS read at load time, load the BLAS."""
    requested = os.environ.get("MLXCEL_BLAS") or "auto"
    switch = os.environ.get(DETERMINISTIC_SWITCH) or "0"
    invariant = os.environ.get(INVARIANT_SWITCH) or "0"
    device = os.environ.get("MLXCEL_DEVICE") or "auto"
    for name, value in _QUIET_DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name, value in ((DETERMINISTIC_SWITCH, switch), (INVARIANT_SWITCH, invariant)):
        if value not in ("0", "1"):
            return Preload("unknown", False, device, False, f"{name}={value}: give 0 or 1")
    if "mlx.core" in sys.modules:
        late = "mlx was imported before mlxcel_engine: its BLAS and precision settings did not take effect"
        warnings.warn(late, RuntimeWarning, stacklevel=2)
        return Preload("unknown", False, device, True, None, late, invariant == "1")
    contradiction = _fix_order() if switch == "1" else None
    blas, problem, warning = _choose_blas(requested)
    return Preload(blas, switch == "1", device, False, contradiction or problem, warning, invariant == "1")


PRELOAD = _apply()
