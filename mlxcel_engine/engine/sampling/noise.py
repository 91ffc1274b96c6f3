"""Gumbel noise for draws by maximum: one value per token id, a pure function of a key."""

from __future__ import annotations

import mlx.core as mx

_SMALLEST = 2.0**-33  # below the least uniform that is not 0, so that no noise is infinite


def uniforms(keys: mx.array, vocab_size: int) -> mx.array:
    """Uniform float32 ``[B, V]`` in [0, 1): row ``b`` depends on ``keys[b]`` (uint32 ``[B, 2]``) alone."""
    if keys.shape[0] == 1:
        return mx.random.uniform(shape=(vocab_size,), key=keys[0])[None]
    drawn: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)
    return drawn


def gumbel(uniform: mx.array) -> mx.array:
    """Standard Gumbel values of uniform ones; the great ones come from the fine end of float32, near 0."""
    return -mx.log(-mx.log1p(-mx.maximum(uniform, _SMALLEST)))
