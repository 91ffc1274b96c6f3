"""Properties of the interval and of the rule; their error rates are in test_simulation."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.rounds.statistics import (
    MIN_ROUNDS,
    _bootstrap_medians,
    _expanded_level,
    count_ahead,
    inside,
    median_interval,
    rounds_ahead_needed,
    told_apart,
)

VALUES = st.lists(st.floats(-50, 50).map(lambda value: round(value, 3)), min_size=1, max_size=24)


@given(VALUES)
def test_the_interval_holds_the_median_and_lies_within_the_range(values: list[float]) -> None:
    low, high = median_interval(np.array(values))
    assert min(values) <= low <= np.median(values) <= high <= max(values)


@given(VALUES, st.integers(-40, 40), st.sampled_from([0.5, 2.0, -1.0]), st.integers(0, 99))
def test_it_moves_and_stretches_with_the_values_and_ignores_their_order(
    values: list[float], shift: int, factor: float, seed: int
) -> None:
    edges = median_interval(np.array(values))
    moved = median_interval(np.random.default_rng(seed).permutation(values) * factor + shift)
    expected = sorted(float(edge) * factor + shift for edge in edges)
    assert [float(edge) for edge in moved] == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 8), st.integers(1, 9), st.integers(0, 99))
def test_many_rows_at_once_are_the_rows_one_by_one(rows: int, n: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(0, 1, (rows, n))
    low, high = median_interval(values)
    for index, row in enumerate(values):
        assert median_interval(row) == (low[index], high[index])


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_the_exact_bootstrap_is_every_draw_counted(n: int) -> None:
    lower, upper, chance = _bootstrap_medians(n)
    values = np.array([0, 1, 10, 100, 1000, 10000][:n], dtype=float)
    counted: dict[float, int] = {}
    for draw in product(values, repeat=n):
        counted[float(np.median(draw))] = counted.get(float(np.median(draw)), 0) + 1
    found = {float((values[i] + values[j]) / 2): p * n**n for i, j, p in zip(lower, upper, chance, strict=True)}
    assert {median: count for median, count in found.items() if count > 1e-9} == pytest.approx(counted)


@pytest.mark.parametrize("n", [7, 20, 101, 1000])
def test_the_probabilities_of_the_exact_bootstrap_add_up(n: int) -> None:
    assert _bootstrap_medians(n)[2].sum() == pytest.approx(1)
    assert (_bootstrap_medians(n)[2] > -1e-12).all()


def test_the_level_is_that_of_students_quantile() -> None:
    """Phi(-sqrt(n/(n-1)) t): t of 9 degrees of freedom is 2.2622, of 4 2.7764; for many values it is 2.5 %."""
    assert _expanded_level(10) == pytest.approx(0.00855, abs=1e-4)
    assert _expanded_level(5) == pytest.approx(0.00095, abs=2e-5)
    assert _expanded_level(100_000) == pytest.approx(0.025, abs=1e-4)


@pytest.mark.parametrize("n", range(1, 40))
def test_the_critical_value_is_the_least_that_keeps_5_percent(n: int) -> None:
    def two_sided(k: int) -> float:
        return 2 * sum(comb(n, m) * 2.0 ** (n - m) for m in range(k, n + 1)) / 3.0**n

    needed = rounds_ahead_needed(n)
    assert two_sided(needed) <= 0.05
    assert two_sided(needed - 1) > 0.05


GAINS = st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=16)


@given(GAINS)
def test_swapping_the_arms_swaps_the_claim(pairs: list[tuple[float, float]]) -> None:
    against, against_null = np.array(pairs).T
    assert told_apart(-against, -against_null) == -told_apart(against, against_null)


@given(GAINS)
def test_a_claim_needs_5_rounds_an_interval_off_zero_and_both_runs_of_the_reference(
    pairs: list[tuple[float, float]],
) -> None:
    against, against_null = np.array(pairs).T
    claim = told_apart(against, against_null)
    low, high = median_interval(against)
    if claim:
        assert len(pairs) >= MIN_ROUNDS
        assert low > 0 or high < 0
        assert count_ahead(claim * against, claim * against_null) >= rounds_ahead_needed(len(pairs))
    one_sided = np.abs(against)
    assert told_apart(one_sided, -one_sided) == 0  # ahead of the reference, behind its null run: noise


@given(st.lists(st.floats(0.01, 9), min_size=5, max_size=16))
def test_ahead_in_every_round_is_a_claim(values: list[float]) -> None:
    assert told_apart(np.array(values), np.array(values)) == 1


@given(VALUES, st.floats(0, 60))
def test_inside_is_about_the_interval(values: list[float], threshold: float) -> None:
    low, high = median_interval(np.array(values))
    assert bool(inside(np.array(values), threshold)) == (-threshold - 1e-9 <= low and high <= threshold + 1e-9)
