"""In which dtype and form weights run on a device: the one place where that is decided (ADR 0002). No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mlxcel_engine.errors import UsageError

DtypeName = Literal["float32", "bfloat16", "float16"]
DTYPES = ("auto", *get_args(DtypeName))
WEIGHTS = ("auto", "quantized", "dequantized")


@dataclass(frozen=True)
class LoadPolicy:
    """``dtype`` None keeps the stored one; ``dequantize`` expands quantized weights once, at load."""

    dtype: DtypeName | None
    dequantize: bool


def resolve_policy(device: Literal["cpu", "gpu"], dtype: str = "auto", weights: str = "auto") -> LoadPolicy:
    """Resolve ``auto``: float32 and dequantized on a CPU device, as stored on a GPU.

    Raises:
        UsageError: an unknown value, or float16 on a CPU device.

    """
    chosen: DtypeName | None
    match dtype:
        case "auto":
            chosen = "float32" if device == "cpu" else None
        case "float32" | "bfloat16":
            chosen = dtype
        case "float16" if device == "cpu":
            reason = "MLX's float16 is unusable on a CPU (0.05 GFLOP/s against 1.8 in float32, and inaccurate)"
            raise UsageError(f"--dtype float16: {reason}; give float32 or bfloat16")
        case "float16":
            chosen = dtype
        case _:
            raise UsageError(f"--dtype {dtype}: give one of {', '.join(DTYPES)}")
    if weights not in WEIGHTS:
        raise UsageError(f"--weights {weights}: give one of {', '.join(WEIGHTS)}")
    dequantize = device == "cpu" if weights == "auto" else weights == "dequantized"
    return LoadPolicy(chosen, dequantize)
