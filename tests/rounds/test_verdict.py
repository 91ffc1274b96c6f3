"""Words, thresholds, and how many rounds are still needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.records.rounds import Threshold
from mlxcel_engine.rounds.threshold import automatic_threshold
from mlxcel_engine.rounds.verdict import judge, judge_null, needed_rounds


def given_threshold(pct: float) -> Threshold:
    return Threshold(metric="decode_tok_s", pct=pct, automatic=False)


def auto(pct: float | None) -> Threshold:
    return Threshold(metric="decode_tok_s", pct=pct, automatic=True)


def verdict(values: list[float], threshold: Threshold, null: list[float] | None = None) -> str:
    return judge(np.array(values), np.array(values if null is None else null), threshold).word


def test_the_four_words() -> None:
    assert verdict([4, 5, 6, 5, 5], auto(2)) == "faster"
    assert verdict([-4, -5, -6, -5, -5], auto(2)) == "slower"
    assert verdict([1, -1, 0.5, 0, -0.5], auto(2)) == "no difference"
    assert verdict([4, -5, 6, 5, 5], auto(2)) == "unresolved"
    assert verdict([4, 5, 6, 5, 5], auto(2), null=[1, 2, -1, 2, 2]) == "unresolved"


def test_within_a_given_threshold_there_is_no_difference_within_an_automatic_one_there_may_be() -> None:
    small = [0.4, 0.5, 0.6, 0.5, 0.5]
    assert verdict(small, given_threshold(1)) == "no difference"
    assert verdict(small, given_threshold(0.5)) == "faster"
    assert verdict(small, auto(1)) == "faster"


@pytest.mark.parametrize("values", [[], [9.0], [9.0, 9.0], [9.0] * 4, [0.0] * 4])
def test_below_5_rounds_it_stays_unresolved(values: list[float]) -> None:
    result = judge(np.array(values), np.array(values), auto(5))
    assert (result.word, result.reason) == ("unresolved", f"rounds that count: {len(values)}, a claim needs 5")


def test_without_a_null_pair_there_is_no_automatic_threshold_to_be_within() -> None:
    assert verdict([0.1, -0.1, 0, 0, 0], auto(None)) == "unresolved"


@given(st.lists(st.floats(-20, 20), max_size=12), st.floats(0.5, 5))
def test_a_null_arm_is_never_claimed_to_differ(values: list[float], pct: float) -> None:
    assert judge_null(np.array(values), auto(pct)).word in ("no difference", "unresolved")


def test_clear_rounds_need_few_and_noisy_ones_many() -> None:
    clear, noisy = np.array([5.0, 5.1, 4.9]), np.array([2.0, -1.5, 3, 0.5, 1.5, 0.8, -0.3])
    assert needed_rounds(clear, clear, auto(0.5)) == 5
    many = needed_rounds(noisy, noisy, auto(0.5))
    assert many is not None
    assert many > 11
    assert needed_rounds(noisy, noisy, auto(4)) == 9  # enough to be within so wide a threshold
    hopeless = np.array([3.0, -3, 3, -3, 3, -3])
    assert needed_rounds(hopeless, -hopeless, auto(0.5)) is None
    assert needed_rounds(clear[:1], clear[:1], auto(0.5)) is None


def test_more_rounds_than_there_are_are_asked_for() -> None:
    result = judge(np.array([4, -1, 5, 6, 4.0]), np.array([4, -1, 5, 6, 4.0]), auto(0.5))
    assert result.word == "unresolved"
    assert result.rounds_needed is not None
    assert result.rounds_needed > 5
    assert "4 of 5" in result.reason


@pytest.mark.parametrize(
    ("deltas", "threshold"),
    [([0.2, -0.3], 0.5), ([0.5], 0.5), ([-0.51], 1.0), ([1.2, -2.3, 0.4], 2.5), ([2.5000000001], 2.5), ([0.0], 0.5)],
)
def test_the_automatic_threshold_is_the_widest_delta_rounded_up(deltas: list[float], threshold: float) -> None:
    assert automatic_threshold(deltas) == threshold


def test_without_null_deltas_there_is_none() -> None:
    assert automatic_threshold([]) is None


@given(st.lists(st.floats(-50, 50), min_size=1))
def test_no_null_delta_is_beyond_it_and_it_is_on_a_step(deltas: list[float]) -> None:
    threshold = automatic_threshold(deltas)
    assert threshold is not None
    widest = max(map(abs, deltas))
    assert widest <= threshold + 1e-8
    assert threshold <= max(widest + 0.5, 0.5)
    assert threshold % 0.5 == 0
