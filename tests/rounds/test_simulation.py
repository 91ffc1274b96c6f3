"""The rule against noise: 2,000 simulated measurements each, judged by the code that judges a run.

docs/rounds.md prints these rates; ``python -m tests.rounds.test_simulation`` prints its table anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from mlxcel_engine.records.rounds import Threshold
from mlxcel_engine.rounds.schedule import schedule
from mlxcel_engine.rounds.statistics import inside, median_interval, told_apart
from mlxcel_engine.rounds.threshold import automatic_threshold
from mlxcel_engine.rounds.verdict import judge

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRIALS = 2000
Noise = Literal["normal", "heavy"]
Drift = Literal["none", "block", "mid-round", "ramp", "busy"]
NOISES: tuple[Noise, ...] = ("normal", "heavy")
DRIFTS: tuple[Drift, ...] = ("none", "block", "mid-round", "ramp", "busy")


def noise(kind: Noise, random: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Noise of 1 % standard deviation per run; the heavy one is Student's with 3 degrees of freedom."""
    drawn = random.standard_normal(size) if kind == "normal" else random.standard_t(3, size) / np.sqrt(3)
    return np.asarray(drawn / 100)


def slowdown(kind: Drift, random: np.random.Generator, rounds: int, places: int) -> NDArray[np.float64]:
    """The host's speed at each run in order, (trials, rounds, places): 10 % slower for a while, in several ways."""
    speed = np.ones((TRIALS, rounds * places))
    at = np.arange(rounds * places)
    if kind == "block":  # some whole rounds, one after another
        first, last = np.sort(random.integers(0, rounds + 1, (2, TRIALS, 1)), axis=0) * places
        speed[(at >= first) & (at < last)] = 0.9
    elif kind == "mid-round":  # from any run on
        speed[at >= random.integers(0, rounds * places, (TRIALS, 1))] = 0.9
    elif kind == "ramp":  # slower and slower
        speed -= 0.1 * at / at[-1]
    elif kind == "busy":  # half of the runs, at random
        speed[random.random(speed.shape) < 0.5] = 0.9
    return speed.reshape(TRIALS, rounds, places)


def gains(
    rounds: int, true_pct: float, kind: Noise, drift: Drift = "none", *, arms: int = 2, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The second arm's gains on the reference and on its null run, and the null run's on the reference, in percent."""
    random = np.random.default_rng(seed)
    names = [f"arm{index}" for index in range(arms)]
    slots = schedule(names, rounds, null_every_arm=False)
    host = slowdown(drift, random, rounds, arms + 1)
    speed: dict[tuple[str, bool], NDArray[np.float64]] = {}
    for name, null in [("arm0", False), ("arm1", False), ("arm0", True)]:
        places = [slot.position for slot in slots if (slot.arm, slot.null) == (name, null)]
        own = 1 + noise(kind, random, (TRIALS, rounds)) + (true_pct / 100 if name == "arm1" else 0.0)
        speed[name, null] = own * host[:, np.arange(rounds), places]
    first, second, null_run = speed["arm0", False], speed["arm1", False], speed["arm0", True]
    return 100 * (second / first - 1), 100 * (second / null_run - 1), 100 * (null_run / first - 1)


def rates(rounds: int, true_pct: float, kind: Noise, drift: Drift = "none", *, arms: int = 2) -> tuple[float, float]:
    """How often the arm is called faster, and slower."""
    against, against_null, _ = gains(rounds, true_pct, kind, drift, arms=arms)
    claims = told_apart(against, against_null)
    return float(np.mean(claims > 0)), float(np.mean(claims < 0))


@pytest.mark.parametrize("rounds", [5, 6, 7, 10, 20])
@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("arms", [2, 5])
def test_a_against_a_is_seldom_told_apart(rounds: int, kind: Noise, drift: Drift, arms: int) -> None:
    assert sum(rates(rounds, 0, kind, drift, arms=arms)) <= 0.05


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(("rounds", "true_pct", "at_least"), [(5, 5, 0.9), (10, 3, 0.8), (10, 5, 0.9), (20, 2, 0.8)])
def test_a_true_difference_is_found(rounds: int, true_pct: float, at_least: float, kind: Noise) -> None:
    faster, slower = rates(rounds, true_pct, kind)
    assert faster >= at_least
    assert slower == 0
    faster, slower = rates(rounds, -true_pct, kind)
    assert slower >= at_least
    assert faster == 0


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("rounds", [5, 10])
def test_a_block_of_slow_rounds_costs_no_power(rounds: int, kind: Noise) -> None:
    assert rates(rounds, 5, kind, "block")[0] >= 0.9


@pytest.mark.parametrize("true_pct", [0, 5, 50])
def test_below_5_rounds_nothing_is_claimed(true_pct: float) -> None:
    for rounds in range(1, 5):
        assert rates(rounds, true_pct, "normal") == (0, 0)
    assert rates(5, 50, "normal")[0] == 1


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("automatic", [False, True])
def test_the_verdict_in_words_keeps_these_rates(kind: Noise, automatic: bool) -> None:
    """The whole rule, threshold included, on a sample of the trials; words go one by one."""
    for rounds, true_pct, least, most in ((5, 0, 0, 0.05), (10, 0, 0, 0.05), (5, 5, 0.9, 1), (10, 3, 0.8, 1)):
        found = 0
        for against, against_null, null in zip(*(each[:200] for each in gains(rounds, true_pct, kind)), strict=True):
            pct = automatic_threshold(null) if automatic else 1.0
            threshold = Threshold(metric="decode_tok_s", pct=pct, automatic=automatic)
            found += judge(against, against_null, threshold).word in ("faster", "slower")
        assert least <= found / 200 <= most


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(("rounds", "least"), [(5, 0.92), (6, 0.94), (7, 0.94), (10, 0.94), (15, 0.94), (30, 0.94)])
def test_the_interval_covers_the_true_median(rounds: int, least: float, kind: Noise) -> None:
    against, _, _ = gains(rounds, 3, kind, seed=1)
    low, high = median_interval(against)
    assert np.mean((low <= 3) & (high >= 3)) >= least


def naive(against: NDArray[np.float64]) -> NDArray[np.bool_]:
    """What a comparison without a null arm and without an interval would claim: three rounds of five, say."""
    return np.asarray(np.abs(np.median(against, axis=-1)) > 1)


def test_the_simulation_catches_a_rule_that_claims_too_much() -> None:
    against, _, _ = gains(5, 0, "normal")
    assert naive(against).mean() > 0.05


def table() -> dict[tuple[str, str, int], list[float]]:
    """The rates in percent: a false claim, 2, 3 and 5 % found, equal arms within the automatic threshold."""
    rows: dict[tuple[str, str, int], list[float]] = {}
    for kind in NOISES:
        for drift in DRIFTS:
            for rounds in (5, 10, 20):
                false = sum(rates(rounds, 0, kind, drift))
                found = [rates(rounds, pct, kind, drift)[0] for pct in (2, 3, 5)]
                against, _, null = gains(rounds, 0, kind, drift)
                none = np.mean([inside(a, automatic_threshold(z) or 0) for a, z in zip(against, null, strict=True)])
                rows[kind, drift, rounds] = [100 * float(rate) for rate in (false, *found, none)]
    return rows


def test_the_page_has_the_rates_of_this_simulation() -> None:
    """Another version of NumPy may draw other numbers, so a point of difference is let pass."""
    page = (Path(__file__).parents[2] / "docs" / "rounds.md").read_text()
    printed: dict[tuple[str, str, int], list[float]] = {}
    for kind, drift, rounds, *figures in re.findall(r"\| (\S+) \| (\S+) \| (\d+) " + r"\| (\S+) % " * 5 + r"\|", page):
        printed[kind, drift, int(rounds)] = [float(figure) for figure in figures]
    measured = table()
    assert printed.keys() == measured.keys()
    for case, rates_of_case in measured.items():
        assert printed[case] == pytest.approx(rates_of_case, abs=1.0)


def print_table() -> None:
    print("| noise | drift | rounds | false claim | 2 % found | 3 % found | 5 % found | A/A within auto threshold |")
    print("|---|---|---|---|---|---|---|---|")
    for (kind, drift, rounds), figures in table().items():
        print(f"| {kind} | {drift} | {rounds} | {' | '.join(f'{rate:.1f} %' for rate in figures)} |")


if __name__ == "__main__":
    print_table()
