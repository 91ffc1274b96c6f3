"""From logprobs to tokens for rows of equal settings: filters, temperature or mirostat, then the Gumbel maximum.

A draw is the largest of (tempered logprob + Gumbel noise) among the tokens that the filters left, which is a draw
from their renormalized probabilities (Gumbel, 1954; Maddison et al., 2014). The noise of a token id is a function of
seed and position, so the score can be compared between paths. Nothing here reads the device from the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlxcel_engine.engine.sampling import mirostat
from mlxcel_engine.engine.sampling.filters import apply_filters, descending
from mlxcel_engine.engine.sampling.keys import TOKEN, XTC, draw_key
from mlxcel_engine.engine.sampling.noise import gumbel, uniforms
from mlxcel_engine.engine.sampling.temperature import apply_temperature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.sampling.settings import DrawSettings

_NO_ID = 0xFFFFFFFF


@dataclass(frozen=True)
class Turn:
    """One row's share of a draw: its seed, how many tokens it drew before, and mirostat's ``mu`` ``[1]``, if any."""

    seed: int
    position: int
    mu: mx.array | None = None


@dataclass(frozen=True)
class Scores:
    """``values`` float32 ``[B, K]``, -inf where filtered; ``ids`` uint32 ``[B, K]``, or None: place is id.

    ``weights`` are the values before the noise, ``likeliest`` ``[B]`` the greatest logprobs before any filter.
    """

    values: mx.array
    weights: mx.array
    ids: mx.array | None
    likeliest: mx.array


def score_rows(logprobs: mx.array, settings: DrawSettings, turns: Sequence[Turn]) -> Scores:
    """Score the tokens of rows ``[B, V]`` (nats, any float dtype; computed in float32) that share ``settings``."""
    values, ids = logprobs.astype(mx.float32), None
    if settings.ordered:
        values, ids = descending(values, settings.top_k)
        likeliest = values[:, 0]
        values = apply_filters(values, ids, settings, _xtc_acts(settings, turns))
    else:
        likeliest = mx.max(values, axis=-1)
        values = apply_filters(values, None, settings, None)
    values = apply_temperature(values, settings)
    if settings.mirostat:
        values = mirostat.truncate(values, settings, _mu(turns))
    keys = mx.array(np.array([draw_key(turn.seed, turn.position, TOKEN) for turn in turns], dtype=np.uint32))
    uniform = uniforms(keys, logprobs.shape[-1])
    noise = gumbel(uniform if ids is None else mx.take_along_axis(uniform, ids, axis=-1))
    return Scores(values + noise, values, ids, likeliest)


def draw_rows(
    logprobs: mx.array, settings: DrawSettings, turns: Sequence[Turn]
) -> tuple[mx.array, Sequence[mx.array | None]]:
    """Draw a token a row, uint32 ``[B]``, and return it with each row's next ``mu`` ``[1]`` (None without mirostat).

    Equal scores go to the lowest id. A row without a finite logprob, or with a NaN, gets token 0.
    """
    scores = score_rows(logprobs, settings, turns)
    places = mx.argmax(scores.values, axis=-1, keepdims=True)
    tokens = places[:, 0]
    if scores.ids is not None:
        best = scores.values == mx.max(scores.values, axis=-1, keepdims=True)
        tokens = mx.min(mx.where(best, scores.ids, _NO_ID), axis=-1)
    tokens = mx.where(mx.isfinite(scores.likeliest), tokens, 0).astype(mx.uint32)
    if not settings.mirostat:
        return tokens, [None] * len(turns)
    mu = mirostat.updated(_mu(turns), scores.weights, places, settings)
    return tokens, [mu[row] for row in range(len(turns))]


def spread(scores: Scores, vocab_size: int) -> mx.array:
    """Scores by token id, float32 ``[B, V]``, -inf where filtered."""
    if scores.ids is None:
        return scores.values
    nothing = mx.full((scores.values.shape[0], vocab_size), -math.inf)
    return mx.put_along_axis(nothing, scores.ids, scores.values, axis=-1)


def _mu(turns: Sequence[Turn]) -> mx.array:
    return mx.stack([turn.mu for turn in turns if turn.mu is not None])


def _xtc_acts(settings: DrawSettings, turns: Sequence[Turn]) -> mx.array | None:
    """In which rows XTC acts, bool ``[B, 1]``; its coin is thrown on the host. None for nowhere."""
    if not settings.xtc_probability:
        return None
    words = [draw_key(turn.seed, turn.position, XTC) for turn in turns]
    acts = [(high << 32 | low) / 2**64 <= settings.xtc_probability for high, low in words]
    return mx.array(acts)[:, None] if any(acts) else None
