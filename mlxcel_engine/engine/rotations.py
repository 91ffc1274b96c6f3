"""The rope of a decode step as one product: MLX's is some twenty small operations a call on a CPU."""

from __future__ import annotations

import math

import mlx.core as mx


class Rotations:
    """The rotation matrices of one forward, float32 ``[dims, dims]`` or ``[B, 1, dims, dims]``.

    Each is made once for all layers that rotate alike: by the same numbers and the very same arrays, which must not be
    changed in place during the forward.
    """

    def __init__(self) -> None:
        self._made: dict[object, tuple[object, mx.array]] = {}

    def apply(
        self, x: mx.array, dims: int, base: float | None, scale: float, offset: int | mx.array, freqs: mx.array | None
    ) -> mx.array:
        """Rotate one token a row, ``[B, H, 1, dims]``, as ``mx.fast.rope`` does when it is not ``traditional``.

        ``offset`` is a number or an array, ``[]``, ``[1]`` or ``[B]``; either ``base`` or ``freqs`` ``[dims / 2]`` is
        given. The angles are computed as MLX computes them.
        """
        key = dims, base, scale, offset if isinstance(offset, int) else id(offset), id(freqs)
        if key not in self._made:
            self._made[key] = (offset, freqs), _rotation(dims, base, scale, offset, freqs)  # ids last as long as these
        return x @ self._made[key][1]


def _rotation(dims: int, base: float | None, scale: float, offset: int | mx.array, freqs: mx.array | None) -> mx.array:
    half = dims // 2
    if freqs is not None:
        steps = mx.reciprocal(freqs.astype(mx.float32))
    else:
        steps = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(base or 1.0) / half))
    positions = mx.array(offset).astype(mx.float32) * scale
    angles = positions[..., None, None, None] * steps if positions.ndim else positions * steps
    cos, sin = mx.eye(half) * mx.cos(angles), mx.eye(half) * mx.sin(angles)
    upper, lower = mx.concatenate([cos, sin], axis=-1), mx.concatenate([-sin, cos], axis=-1)
    return mx.concatenate([upper, lower], axis=-2)
