"""Functions that MLX computes slowly for float32 on a CPU: exponentials as powers of two, decode rope as a product.

Measured on two cores: MLX's ``exp`` takes 12 ns an element and its power 4; its rope is some twenty small operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import mlx.core as mx

LOG2_E = math.log2(math.e)


def log_softmax(logits: mx.array) -> mx.array:
    """Logprobs (nats) of float32 logits ``[B, V]``."""
    top = logits.max(axis=-1, keepdims=True)
    total = mx.power(2.0, (logits - top) * LOG2_E).sum(axis=-1, keepdims=True)
    return logits - (top + mx.log(total))


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """``silu(gate) * x``, float32 of one shape."""
    return gate / (mx.power(2.0, gate * -LOG2_E) + 1.0) * x


@dataclass
class Rotations:
    """The rotation matrices of one forward, float32 ``[dims, dims]`` or ``[B, 1, dims, dims]``: one a kind of rope."""

    _made: dict[object, tuple[object, mx.array]] = field(default_factory=dict)

    def apply(
        self, x: mx.array, dims: int, base: float | None, scale: float, offset: int | mx.array, freqs: mx.array | None
    ) -> mx.array:
        """Rotate one token a row, ``[B, H, 1, dims]``, as ``mx.fast.rope`` does when it is not ``traditional``.

        ``offset`` is a number or an array ``[B]``; ``freqs`` ``[dims / 2]`` replaces ``base``. The angles are computed
        as MLX computes them.
        """
        key = dims, base, scale, offset if isinstance(offset, int) else id(offset), id(freqs)
        if key not in self._made:
            self._made[key] = (offset, freqs), _rotation(dims, base, scale, offset, freqs)  # ids last as long as these
        return x @ self._made[key][1]


def _rotation(dims: int, base: float | None, scale: float, offset: int | mx.array, freqs: mx.array | None) -> mx.array:
    half = dims // 2
    if freqs is not None:
        steps = mx.reciprocal(freqs)
    else:
        steps = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(base or 1.0) / half))
    positions = mx.array(offset).astype(mx.float32) * scale
    angles = positions[..., None, None, None] * steps if positions.ndim else positions * steps
    cos, sin = mx.eye(half) * mx.cos(angles), mx.eye(half) * mx.sin(angles)
    upper, lower = mx.concatenate([cos, sin], axis=-1), mx.concatenate([-sin, cos], axis=-1)
    return mx.concatenate([upper, lower], axis=-2)
