"""The settings before MLX's import, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

REPORT = """
import dataclasses, json, os
{before}
from mlxcel_engine import PRELOAD
names = ("MKL_CBWR", "MLX_ENABLE_TF32", "HF_HUB_DISABLE_TELEMETRY")
print(json.dumps({{**dataclasses.asdict(PRELOAD), "env": {{n: os.environ.get(n) for n in names}}}}))
"""


def _a_library_without_blas() -> str:
    """An extension module of the standard library: a shared library, and no BLAS."""
    import _struct

    return str(getattr(_struct, "__file__", "no-such-file"))


def preload(before: str = "", **variables: str) -> dict[str, Any]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL_", "MKL_", "MLX_", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(before=before)],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_nothing_is_fixed_without_the_switch() -> None:
    report = preload()
    assert (report["deterministic"], report["problem"], report["mlx_was_first"]) == (False, None, False)
    assert report["env"] == {"MKL_CBWR": None, "MLX_ENABLE_TF32": None, "HF_HUB_DISABLE_TELEMETRY": "1"}


def test_the_switch_fixes_the_order_of_sums_and_keeps_what_the_user_set() -> None:
    report = preload(MLXCEL_SDPA_DETERMINISTIC="1")
    assert report["deterministic"]
    assert report["env"] == {"MKL_CBWR": "AVX2,STRICT", "MLX_ENABLE_TF32": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    assert preload(MLXCEL_SDPA_DETERMINISTIC="1", MKL_CBWR="AVX512,STRICT")["env"]["MKL_CBWR"] == "AVX512,STRICT"
    assert not preload(MLXCEL_SDPA_DETERMINISTIC="0")["deterministic"]


def test_the_invariant_mode_is_off_unless_it_is_switched_on_and_sets_nothing() -> None:
    report = preload(MLXCEL_INVARIANT="1")
    assert report["invariant"]
    assert report["env"] == preload()["env"]
    assert not preload()["invariant"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MLXCEL_SDPA_DETERMINISTIC": "false"}, "give 0 or 1"),
        ({"MLXCEL_INVARIANT": "yes"}, "MLXCEL_INVARIANT=yes: give 0 or 1"),
        ({"MLXCEL_SDPA_DETERMINISTIC": "1", "MLX_ENABLE_TF32": "1"}, "MLX_ENABLE_TF32=1"),
        ({"MLXCEL_SDPA_DETERMINISTIC": "1", "MKL_CBWR": "AUTO"}, "needs a strict MKL_CBWR, not AUTO"),
    ],
)
def test_a_switch_that_cannot_hold_is_a_problem(variables: dict[str, str], said: str) -> None:
    assert said in preload(**variables)["problem"]


def test_mlx_imported_first_is_said_and_is_not_deterministic() -> None:
    report = preload("import mlx.core", MLXCEL_SDPA_DETERMINISTIC="1")
    assert report["mlx_was_first"]
    assert not report["deterministic"]
    assert "before mlxcel_engine" in report["warning"]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Accelerate: no choice of BLAS there")
@pytest.mark.parametrize(
    ("value", "blas", "said"),
    [
        ("bundled", "bundled", None),
        ("no-such-blas", "bundled", "no-such-blas: cannot be loaded"),
        (sys.executable, "bundled", "cannot be loaded"),
        (_a_library_without_blas(), "bundled", "has no cblas_sgemm"),
    ],
)
def test_the_blas_that_was_asked_for_is_loaded_or_refused_by_name(value: str, blas: str, said: str | None) -> None:
    report = preload(MLXCEL_BLAS=value)
    assert report["blas"] == blas
    if said is None:
        assert report["problem"] is None
    else:
        assert said in report["problem"]
        assert "mkl" in report["problem"]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Accelerate: no choice of BLAS there")
def test_without_any_fast_blas_auto_warns_once_and_says_what_to_install() -> None:
    hide = "import ctypes\ndef refuse(*a, **k): raise OSError\nctypes.CDLL = refuse"
    report = preload(hide)
    assert (report["blas"], report["problem"]) == ("bundled", None)
    assert "install" in report["warning"]
    assert "not installed" in preload(hide, MLXCEL_BLAS="mkl")["problem"]
    assert "libopenblas" in preload(hide, MLXCEL_BLAS="openblas")["problem"]


def test_a_blas_problem_stops_the_command_with_one_line() -> None:
    env = {**os.environ, "MLXCEL_BLAS": "no-such-blas"}
    code = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(['parity']))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if sys.platform != "darwin":
        assert done.returncode == 2
        assert done.stderr.startswith("error: MLXCEL_BLAS=no-such-blas")
        assert len(done.stderr.splitlines()) == 1
