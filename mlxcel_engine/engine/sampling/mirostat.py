"""Mirostat 1 and 2 (Basu et al., 2021), as llama.cpp computes them: a draw that steers its surprise to ``tau`` bits.

The state ``mu`` (float32 ``[B, 1]``, bits) bounds the surprise of a draw; it starts at ``2 * tau``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import mlx.core as mx

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.settings import DrawSettings

_PAIRS: Final = 99  # of neighbouring tokens that the estimate uses: m of 100, as in the paper
_LN2: Final = math.log(2.0)


def truncate(logits: mx.array, settings: DrawSettings, mu: mx.array) -> mx.array:
    """Drop what would surprise too much: logits ``[B, V]`` (any constant off), version 1 in descending order."""
    normal = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if settings.mirostat == 1:
        keep = mx.arange(logits.shape[-1]) < _kept_tokens(normal, mu)
    else:
        likeliest = mx.arange(logits.shape[-1]) == mx.argmax(logits, axis=-1, keepdims=True)
        keep = (-normal / _LN2 <= mu) | likeliest
    return mx.where(keep, logits, -math.inf)


def updated(mu: mx.array, truncated: mx.array, drawn: mx.array, settings: DrawSettings) -> mx.array:
    """The state after drawing the token at place ``drawn`` (``[B, 1]``) of ``truncated``."""
    normal = mx.take_along_axis(truncated, drawn, axis=-1) - mx.logsumexp(truncated, axis=-1, keepdims=True)
    return mu - settings.mirostat_eta * (-normal / _LN2 - settings.mirostat_tau)


def _kept_tokens(normal: mx.array, mu: mx.array) -> mx.array:
    """Version 1: how many tokens to keep, float32 ``[B, 1]``, from the exponent of a Zipf law fitted to the top.

    Masked tokens take no part in the fit. Where the exponent is 1 the formula is 0 / 0 and its limit is taken.
    """
    size = normal.shape[-1]
    pairs = min(_PAIRS, size - 1)
    if pairs < 1:
        return mx.ones_like(mu)
    steps = mx.log((mx.arange(pairs) + 2).astype(mx.float32) / (mx.arange(pairs) + 1).astype(mx.float32))
    there = normal[:, 1 : pairs + 1] > -math.inf
    falls = mx.where(there, normal[:, :pairs] - normal[:, 1 : pairs + 1], 0.0)
    weight = mx.sum(mx.where(there, steps * steps, 0.0), axis=-1, keepdims=True)
    exponent = mx.sum(mx.where(there, steps * falls, 0.0), axis=-1, keepdims=True) / weight
    excess = exponent - 1
    near_one = mx.abs(excess) < 1e-5
    share = mx.where(near_one, 1 / math.log(size), excess / (1 - mx.power(mx.array(float(size)), -excess)))
    count = mx.power(share * mx.power(mx.array(2.0), mu), 1 / exponent)
    return mx.where(mx.isnan(count), 1.0, mx.maximum(mx.floor(count), 1.0))
