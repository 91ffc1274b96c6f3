"""The chain written from its definitions in NumPy, float64, one token after the other: slow and plain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlxcel_engine.engine.sampling import SamplingConfig

Floats = NDArray[np.float64]


def ordered(logprobs: Floats) -> list[int]:
    """Ids that are not masked, the likeliest first, equal ones by id."""
    return sorted((i for i in range(len(logprobs)) if logprobs[i] > -math.inf), key=lambda i: (-logprobs[i], i))


def probabilities(logprobs: Floats, ids: Sequence[int]) -> list[float]:
    """Probabilities of ``ids``, renormalized among themselves."""
    values = logprobs[list(ids)]
    weights = np.exp(values - values.max())
    return [float(p) for p in weights / weights.sum()]


def top_p(logprobs: Floats, ids: list[int], p: float, min_keep: int = 0) -> list[int]:
    ids = sorted(ids, key=lambda i: (-logprobs[i], i))
    mass = 0.0
    for kept, probability in enumerate(probabilities(logprobs, ids), start=1):
        mass += probability
        if mass >= p and kept >= min_keep:
            return ids[:kept]
    return ids


def min_p(logprobs: Floats, ids: list[int], p: float, min_keep: int = 0) -> list[int]:
    floor = max(logprobs[i] for i in ids) + (math.log(p) if p else -math.inf)
    return [token for rank, token in enumerate(ids) if logprobs[token] >= floor or rank < min_keep]


def typical(logprobs: Floats, ids: list[int], p: float, min_keep: int = 0) -> list[int]:
    probs = dict(zip(ids, probabilities(logprobs, ids), strict=True))
    entropy = -sum(q * math.log(q) for q in probs.values() if q > 0)
    far = {i: abs(-math.log(q) - entropy) if q > 0 else math.inf for i, q in probs.items()}
    mass = 0.0
    nearest = sorted(ids, key=lambda i: far[i])
    for kept, token in enumerate(nearest, start=1):
        mass += probs[token]
        if mass > p and kept >= min_keep:
            nearest = nearest[:kept]
            break
    return [i for i in ids if i in set(nearest)]


def xtc(logprobs: Floats, ids: list[int], threshold: float, eos: Sequence[int] = (), min_keep: int = 0) -> list[int]:
    probs = probabilities(logprobs, ids)
    last = max((place for place, q in enumerate(probs) if q >= threshold), default=0)
    if len(ids) - last < min_keep:
        return ids
    return [i for place, i in enumerate(ids) if place >= last or i in eos]


def kept(logprobs: Floats, config: SamplingConfig) -> list[int]:
    """The ids that top-k, typical-p, top-p and min-p leave, the likeliest first."""
    ids = ordered(logprobs)
    if config.top_k > 0:
        ids = ids[: config.top_k]
    if config.typical_p < 1:
        ids = typical(logprobs, ids, config.typical_p, config.min_keep)
    if config.top_p < 1:
        ids = top_p(logprobs, ids, config.top_p, config.min_keep)
    if config.min_p > 0:
        ids = min_p(logprobs, ids, config.min_p, config.min_keep)
    return ids


def penalized(logits: Floats, history: Sequence[int], config: SamplingConfig) -> Floats:
    """Repetition, frequency and presence penalties."""
    out = logits.copy()
    window = list(history) if config.repeat_last_n < 0 else list(history)[max(0, len(history) - config.repeat_last_n) :]
    for token in set(window):
        value = out[token]
        value = value * config.repeat_penalty if value <= 0 else value / config.repeat_penalty
        out[token] = value - window.count(token) * config.frequency_penalty - config.presence_penalty
    return out


def dry(
    logits: Floats, history: Sequence[int], config: SamplingConfig, breakers: Sequence[Sequence[int]] = ()
) -> Floats:
    """DRY by comparing every stretch with the end of the history, token by token."""
    last_n = config.dry_penalty_last_n
    window = list(history) if last_n < 0 else list(history)[max(0, len(history) - last_n) :]
    limit = _after_last_breaker(window, breakers)
    longest: dict[int, int] = {}
    for follower in range(1, len(window)):
        before, length = window[:follower], 0
        while length < min(len(before), limit) and before[-1 - length] == window[-1 - length]:
            length += 1
        if length >= config.dry_allowed_length:
            longest[window[follower]] = max(length, longest.get(window[follower], 0))
    out = logits.copy()
    for token, length in longest.items():
        if [token] not in [list(b) for b in breakers]:
            out[token] -= config.dry_multiplier * config.dry_base ** (length - config.dry_allowed_length)
    return out


def _after_last_breaker(window: list[int], breakers: Sequence[Sequence[int]]) -> int:
    for head in range(len(window) - 1, -1, -1):
        fitting = [len(b) for b in breakers if window[head : head + len(b)] == list(b)]
        if fitting:
            return len(window) - head - max(fitting)
    return len(window)


def dynamic_temperature(logprobs: Floats, ids: list[int], config: SamplingConfig) -> float:
    if len(ids) < 2:
        return config.temperature
    entropy = -sum(q * math.log(q) for q in probabilities(logprobs, ids) if q > 0)
    low, high = max(0.0, config.temperature - config.dynatemp_range), config.temperature + config.dynatemp_range
    return float(low + (high - low) * (entropy / math.log(len(ids))) ** config.dynatemp_exponent)
