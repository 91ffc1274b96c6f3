"""From the gains of an arm to a verdict, and to how many rounds would probably give one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.rounds.statistics import (
    MIN_ROUNDS,
    count_ahead,
    inside,
    median_interval,
    rounds_ahead_needed,
    told_apart,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxcel_engine.records.rounds import Threshold, VerdictWord

_TRIED = (5, 7, 9, 11, 15, 21, 31, 41, 61, 81, 101)
_RESAMPLES, _PROBABLY = 400, 0.8


@dataclass(frozen=True)
class Verdict:
    """``ahead`` and ``behind`` count rounds; ``rounds_needed`` is None where nothing is to resolve, or too much."""

    word: VerdictWord
    reason: str
    ahead: int
    behind: int
    rounds_needed: int | None


def judge(against: NDArray[np.float64], against_null: NDArray[np.float64], threshold: Threshold) -> Verdict:
    """Judge an arm by its gains (n,) on the reference and on the reference's null run in the same n rounds.

    A threshold that was given is the least difference that matters: within it, there is none. An automatic one is
    the width of the noise of a single round, and many rounds can tell a smaller difference apart; so there the claim
    comes first.
    """
    n = len(against)
    ahead, behind = int(count_ahead(against, against_null)), int(count_ahead(-against, -against_null))
    if n < MIN_ROUNDS:
        reason = f"rounds that count: {n}, a claim needs {MIN_ROUNDS}"
        return Verdict("unresolved", reason, ahead, behind, needed_rounds(against, against_null, threshold))
    apart = int(told_apart(against, against_null))
    within = threshold.pct is not None and bool(inside(against, threshold.pct))
    if apart and not (within and not threshold.automatic):
        word: VerdictWord = "faster" if apart > 0 else "slower"
        reason = f"{word} than both runs of the reference in {max(ahead, behind)} of {n} rounds"
        return Verdict(word, reason, ahead, behind, None)
    if within:
        return Verdict("no difference", f"its interval is within {threshold.pct:g} %", ahead, behind, None)
    reason = _what_is_missing(against, ahead, behind)
    return Verdict("unresolved", reason, ahead, behind, needed_rounds(against, against_null, threshold))


def judge_null(gains: NDArray[np.float64], threshold: Threshold) -> Verdict:
    """Judge a null arm by its gains on its source: it is the same, so nothing is ever claimed of it."""
    ahead, behind = int(np.sum(gains > 0)), int(np.sum(gains < 0))
    if len(gains) >= MIN_ROUNDS and threshold.pct is not None and bool(inside(gains, threshold.pct)):
        return Verdict("no difference", f"its interval is within {threshold.pct:g} %", ahead, behind, None)
    return Verdict("unresolved", "a null arm: what it shows is noise", ahead, behind, None)


def needed_rounds(against: NDArray[np.float64], against_null: NDArray[np.float64], threshold: Threshold) -> int | None:
    """How many rounds like these would give a claim or "no difference" four times out of five; None beyond 101.

    Rounds are drawn from those measured, with replacement, and the rule applied to 400 such runs; so the answer is as
    rough as the few rounds that it is drawn from.
    """
    n = len(against)
    if n < 2:
        return None
    random = np.random.default_rng(0)
    for total in (tried for tried in _TRIED if tried > n or n < MIN_ROUNDS):
        drawn = random.integers(0, n, size=(_RESAMPLES, total))
        resolved = told_apart(against[drawn], against_null[drawn]) != 0
        if threshold.pct is not None:
            resolved |= inside(against[drawn], threshold.pct)
        if resolved.mean() >= _PROBABLY:
            return total
    return None


def _what_is_missing(against: NDArray[np.float64], ahead: int, behind: int) -> str:
    n = len(against)
    low, high = median_interval(against)
    needed = rounds_ahead_needed(n)
    side, most = ("ahead of", ahead) if ahead >= behind else ("behind", behind)
    if low <= 0 <= high:
        return f"its interval holds 0, and it is {side} both runs of the reference in {most} of {n} rounds"
    return f"{side} both runs of the reference in {most} of {n} rounds, {needed} are needed"
