"""Temperature and dynamic temperature: filtered logprobs ``[B, K]`` in, scaled ones out, the greatest of them 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import mlx.core as mx

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.settings import DrawSettings

_COLDEST: Final = 1e-6  # a dynamic temperature below it counts as 0


def apply_temperature(logprobs: mx.array, settings: DrawSettings) -> mx.array:
    """Divide by the temperature, or by one that follows the entropy; the differences are what matters to a draw.

    Dynamic temperature (kalomaze, llama.cpp #4972) lies between temperature minus and plus its range, at the share
    (to the power of its exponent) that the entropy has of the greatest possible one. At 0 the likeliest token is left.
    """
    shifted = logprobs - mx.max(logprobs, axis=-1, keepdims=True)
    if not settings.dynatemp_range:
        return shifted / settings.temperature
    low = max(0.0, settings.temperature - settings.dynatemp_range)
    high = settings.temperature + settings.dynatemp_range
    temperature = low + (high - low) * mx.power(_normalized_entropy(shifted), settings.dynatemp_exponent)
    places = mx.arange(shifted.shape[-1])
    coldest = mx.where(places == mx.argmax(shifted, axis=-1, keepdims=True), 0.0, -math.inf)
    return mx.where(temperature >= _COLDEST, shifted / temperature, coldest)


def _normalized_entropy(logprobs: mx.array) -> mx.array:
    """The entropy over the greatest possible one, ``[B, 1]`` in [0, 1]; 0 where one token is left."""
    alive = logprobs > -math.inf
    normal = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
    entropy = -mx.sum(mx.where(alive, mx.exp(normal) * normal, 0.0), axis=-1, keepdims=True)
    greatest = mx.log(mx.sum(alive, axis=-1, keepdims=True).astype(mx.float32))
    return mx.where(greatest > 0, mx.clip(entropy / greatest, 0.0, 1.0), 0.0)
