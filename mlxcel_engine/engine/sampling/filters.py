"""Which tokens may be drawn: top-k, typical-p, top-p, min-p and XTC, in llama.cpp's order.

Logprobs here are float32 ``[B, K]``, the likeliest first and equal ones by id; -inf where a token was dropped or
masked. Each filter takes the probabilities of what the one before left, renormalized, and leaves at least one.
Of ``mlx-lm``'s filters none is used: its top-k breaks ties by chance of the partition, its top-p keeps every tie of
the last token, and its XTC draws from global state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.settings import DrawSettings

_SIGN = 0x80000000
_LOW = 0xFFFFFFFF
_UNIT = 2.0**44  # the mass of the likeliest token; 2**19 of them still fit 64 bits


def descending(logprobs: mx.array, top_k: int) -> tuple[mx.array, mx.array]:
    """Order float32 ``[B, V]``: logprobs and ids (uint32) ``[B, K]``, the likeliest first, equal ones by id.

    Each token becomes one uint64, its logprob's bits mapped to their descending order above its id, so that no two
    are equal and any sort or partition gives the same result. ``K`` is ``top_k`` where it is on and below ``V``.
    """
    size = logprobs.shape[-1]
    bits = (logprobs + 0.0).view(mx.uint32)  # -0.0 becomes 0.0
    falling = mx.where(bits >= _SIGN, bits, (_SIGN - 1) - bits)
    keys = (falling.astype(mx.uint64) << 32) | mx.arange(size, dtype=mx.uint64)
    if 0 < top_k < size:
        keys = mx.partition(keys, top_k - 1, axis=-1)[:, :top_k]
    ids = (mx.sort(keys, axis=-1) & _LOW).astype(mx.uint32)
    return mx.take_along_axis(logprobs, ids, axis=-1), ids


def apply_typical(logprobs: mx.array, p: float, min_keep: int) -> mx.array:
    """Keep the tokens whose surprise is nearest the entropy, until more than ``p`` is kept (Meister et al., 2022)."""
    alive = _alive(logprobs)
    normal = mx.where(alive, logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True), -math.inf)
    entropy = -mx.sum(mx.where(alive, mx.exp(normal) * normal, 0.0), axis=-1, keepdims=True)
    distance = mx.where(alive, mx.abs(-normal - entropy), math.inf)
    places = mx.arange(logprobs.shape[-1], dtype=mx.uint64)
    keys = (distance.view(mx.uint32).astype(mx.uint64) << 32) | places  # nearest first, equal ones as they stood
    order = (mx.sort(keys, axis=-1) & _LOW).astype(mx.uint32)
    before, total = _masses(mx.take_along_axis(logprobs, order, axis=-1))
    rank = mx.arange(logprobs.shape[-1])
    keep = (before <= p * total) | (rank < max(min_keep, 1))
    return _kept(logprobs, mx.put_along_axis(mx.zeros_like(keep), order, keep, axis=-1))


def apply_top_p(logprobs: mx.array, p: float, min_keep: int) -> mx.array:
    """Keep the likeliest tokens until at least ``p`` is kept (Holtzman et al., 2020)."""
    before, total = _masses(logprobs)
    return _kept(logprobs, (before < p * total) | (_rank(logprobs) < max(min_keep, 1)))


def apply_min_p(logprobs: mx.array, p: float, min_keep: int) -> mx.array:
    """Keep the tokens of at least ``p`` times the greatest probability; order matters only to ``min_keep`` above 1."""
    keep = logprobs >= mx.max(logprobs, axis=-1, keepdims=True) + math.log(p)
    return _kept(logprobs, keep | (_rank(logprobs) < min_keep) if min_keep > 1 else keep)


def apply_xtc(logprobs: mx.array, ids: mx.array, acts: mx.array, settings: DrawSettings) -> mx.array:
    """Drop every token of at least the threshold but the least of them, in the rows where ``acts`` (bool ``[B, 1]``).

    Exclude Top Choices (p-e-w, text-generation-webui #6335). EOS ids stay; so does all, where fewer than
    ``min_keep`` would.
    """
    rank = _rank(logprobs)
    above = mx.softmax(logprobs, axis=-1) >= settings.xtc_threshold
    least = mx.sum(above & _alive(logprobs), axis=-1, keepdims=True) - 1
    left = mx.sum(_alive(logprobs), axis=-1, keepdims=True) - least
    drop = above & (rank < least) & acts & (left >= settings.min_keep)
    if settings.eos_ids:
        eos = mx.array(settings.eos_ids, dtype=mx.uint32)
        drop = drop & ~mx.any(ids[..., None] == eos, axis=-1)
    return _kept(logprobs, ~drop)


def apply_filters(
    logprobs: mx.array, ids: mx.array | None, settings: DrawSettings, xtc_acts: mx.array | None
) -> mx.array:
    """Run the filters after top-k that are on; ``xtc_acts`` as for :func:`apply_xtc`, None where no row's coin fell.

    ``ids`` None: the logprobs stand in the order of their ids, which is enough for min-p alone.
    """
    if settings.typical_p < 1:
        logprobs = apply_typical(logprobs, settings.typical_p, settings.min_keep)
    if settings.top_p < 1:
        logprobs = apply_top_p(logprobs, settings.top_p, settings.min_keep)
    if settings.min_p > 0:
        logprobs = apply_min_p(logprobs, settings.min_p, settings.min_keep)
    if xtc_acts is not None and ids is not None:
        logprobs = apply_xtc(logprobs, ids, xtc_acts, settings)
    return logprobs


def _masses(logprobs: mx.array) -> tuple[mx.array, mx.array]:
    """The mass before each token ``[B, K]`` and of all ``[B, 1]``, float32 on one scale.

    Summed as whole numbers: exact in any order, where a float32 sum of 50,000 is off in its fifth decimal.
    """
    weights = (mx.exp(logprobs - mx.max(logprobs, axis=-1, keepdims=True)) * _UNIT).astype(mx.uint64)
    before = mx.cumsum(weights, axis=-1, inclusive=False)
    return before.astype(mx.float32), mx.sum(weights, axis=-1, keepdims=True).astype(mx.float32)


def _alive(logprobs: mx.array) -> mx.array:
    return logprobs > -math.inf


def _rank(logprobs: mx.array) -> mx.array:
    """How many tokens that are still there come before each."""
    return mx.cumsum(_alive(logprobs).astype(mx.int32), axis=-1, inclusive=False)


def _kept(logprobs: mx.array, keep: mx.array) -> mx.array:
    return mx.where(keep, logprobs, -math.inf)
