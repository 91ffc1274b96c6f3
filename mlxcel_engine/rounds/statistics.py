"""The paired statistics: an interval for the median delta, and the rule that tells an arm apart from noise.

A *gain* is an arm's paired per-round change against a run of the reference in the same round, in percent, positive
where the arm is faster. All functions take gains along the last axis and work on any number of leading axes at once,
so that the tests simulate the very code that judges a run. docs/rounds.md has the reasons and the measured error rates.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_ROUNDS = 5
ALPHA = 0.05
ROUNDING_PCT = 1e-9  # a change on a threshold is within it, whatever its last binary digit

# Of an arm, the reference and the reference's null run, each is the fastest of its round one time in three if all
# three are the same, whatever the noise.
_CHANCE = 1 / 3


def median_interval(gains: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bootstrap 95 % interval of the median, lowest and highest value: (..., n) -> (...,), (...,); n from 1 to 1000.

    The percentile bootstrap, computed exactly instead of by drawing, at the level that Hesterberg's *expanded
    percentile* takes to make up for few values ("What Teachers Should Know About the Bootstrap", 2015, section 5.3):
    Phi(-sqrt(n / (n-1)) * t), t the quantile of Student's distribution for n - 1 degrees of freedom. For up to 5 values
    it is their range.
    """
    n = gains.shape[-1]
    ordered = np.sort(gains, axis=-1)
    if n <= MIN_ROUNDS:
        return ordered[..., 0], ordered[..., -1]
    lower, upper, chance = _bootstrap_medians(n)
    medians = (ordered[..., lower] + ordered[..., upper]) / 2
    order = np.argsort(medians, axis=-1)
    medians = np.take_along_axis(medians, order, axis=-1)
    reached = np.cumsum(chance[order], axis=-1)
    level = _expanded_level(n)
    low, high = (np.argmax(reached >= at - 1e-12, axis=-1)[..., None] for at in (level, 1 - level))
    return np.take_along_axis(medians, low, axis=-1)[..., 0], np.take_along_axis(medians, high, axis=-1)[..., 0]


@lru_cache(maxsize=64)
def _bootstrap_medians(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Every median that n draws with replacement from n ordered values can have, and its probability.

    A median is the mean of the values at two ranks (lower, upper), which are the same one for odd n.
    """
    half, share = n // 2, np.arange(n + 1) / n
    counts = np.arange(half + n % 2, n + 1)
    ways = np.array([float(comb(n, k)) for k in counts])
    reached = [float(np.sum(ways * p**counts * (1 - p) ** (n - counts))) for p in share]
    lower_is = np.diff(reached)
    if n % 2:
        return np.arange(n), np.arange(n), lower_is
    # The two middle draws lie at ranks i < j when half of all draws are at most i, one of them i itself, and the other
    # half at least j, one of them j itself.
    edge = np.diff(share**half)
    chance = np.triu(comb(n, half) * np.outer(edge, edge[::-1]), 1)
    np.fill_diagonal(chance, lower_is - chance.sum(axis=1))
    lower, upper = np.triu_indices(n)
    return lower, upper, chance[lower, upper]


def _expanded_level(n: int) -> float:
    """The tail probability, instead of 2.5 %, at which n values' percentile bootstrap is read."""
    z, v = NormalDist().inv_cdf(1 - ALPHA / 2), n - 1
    # Student's quantile: Abramowitz and Stegun 26.7.5; off by less than 0.001 for 4 degrees of freedom and more.
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    t += (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    return NormalDist().cdf(-sqrt(n / v) * t)


@lru_cache(maxsize=1024)
def rounds_ahead_needed(n: int) -> int:
    """In how many of n rounds an arm has to be ahead of both runs of the reference: the exact test's critical value.

    The least k with 2 P(Bin(n, 1/3) >= k) <= 5 %; n + 1, which cannot be reached, where there is none.
    """
    tail = 0.0
    for k in range(n, -1, -1):
        tail += comb(n, k) * _CHANCE**k * (1 - _CHANCE) ** (n - k)
        if 2 * tail > ALPHA:
            return k + 1
    return 0


def count_ahead(against: NDArray[np.float64], against_null: NDArray[np.float64]) -> NDArray[np.int64]:
    """In how many rounds the arm beat the reference and the reference's null run: (..., n) twice -> (...,)."""
    ahead: NDArray[np.int64] = np.sum((against > 0) & (against_null > 0), axis=-1)
    return ahead


def told_apart(against: NDArray[np.float64], against_null: NDArray[np.float64]) -> NDArray[np.int64]:
    """1 where the arm is faster, -1 where it is slower, 0 where noise explains it: (..., n) twice -> (...,).

    ``against`` holds the gains on the reference, ``against_null`` those on its null run in the same rounds. A claim
    needs 5 rounds, the median's interval off zero, and enough rounds in which the arm beat (or lost to) *both* runs
    of the reference.
    """
    n = against.shape[-1]
    if n < MIN_ROUNDS:
        return np.zeros(against.shape[:-1], dtype=np.int64)
    low, high = median_interval(against)
    needed = rounds_ahead_needed(n)
    faster = (low > 0) & (count_ahead(against, against_null) >= needed)
    slower = (high < 0) & (count_ahead(-against, -against_null) >= needed)
    return faster.astype(np.int64) - slower.astype(np.int64)


def inside(gains: NDArray[np.float64], threshold_pct: float) -> NDArray[np.bool_]:
    """Whether the median's interval lies within plus and minus the threshold: (..., n) -> (...,)."""
    low, high = median_interval(gains)
    return np.maximum(-low, high) <= threshold_pct + ROUNDING_PCT
