"""Logit bias and the repetition, frequency and presence penalties: logits ``[1, V]`` in and out, float32.

The repetition penalty is that of "CTRL" (Keskar et al., 2019), with llama.cpp's correction for logits of 0 or less
(multiplied, not divided); the other two are OpenAI's. A token counts as often as it occurs in the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.config import SamplingConfig


def apply_bias(logits: mx.array, ids: mx.array, bias: mx.array) -> mx.array:
    """Add ``bias`` (float32 ``[n]``) to the tokens ``ids`` (uint32 ``[n]``, none twice)."""
    return replaced(logits, ids, logits[0, ids] + bias)


def apply_penalties(logits: mx.array, window: mx.array, config: SamplingConfig) -> mx.array:
    """Penalize the tokens of ``window`` (uint32 ``[n]``, at least one): scaled, then lowered by their counts."""
    counts = mx.zeros(logits.shape[-1], dtype=mx.int32).at[window].add(1)[window].astype(mx.float32)
    values = logits[0, window]
    scaled = mx.where(values <= 0, values * config.repeat_penalty, values / config.repeat_penalty)
    lowered = scaled - (counts * config.frequency_penalty + config.presence_penalty)
    return replaced(logits, window, lowered)


def replaced(logits: mx.array, ids: mx.array, values: mx.array) -> mx.array:
    """``logits`` with ``values`` at ``ids``; an id that occurs twice has the same value each time."""
    return mx.put_along_axis(logits, ids[None], values[None], axis=-1)
