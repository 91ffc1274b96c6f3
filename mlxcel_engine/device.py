"""Chooses the MLX device; to be called before anything of ``mlx_lm`` is imported (it binds streams to it)."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

from mlxcel_engine.errors import UsageError

Device = Literal["cpu", "gpu"]


def select_device(requested: str) -> Device:
    """Make ``requested`` (``auto``, ``cpu`` or ``gpu``) MLX's default device and return what it is.

    Raises:
        UsageError: an unknown name, or ``gpu`` where MLX has none.

    """
    if requested not in ("auto", "cpu", "gpu"):
        raise UsageError(f"MLXCEL_DEVICE={requested}: give auto, cpu or gpu")
    if requested == "gpu" and not mx.is_available(mx.gpu):
        raise UsageError("MLXCEL_DEVICE=gpu: this MLX has no GPU; install the cuda extra, or MLXCEL_DEVICE=cpu")
    if requested != "auto":
        mx.set_default_device(mx.cpu if requested == "cpu" else mx.gpu)
    return "gpu" if mx.default_device() == mx.gpu else "cpu"
