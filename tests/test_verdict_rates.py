"""The rates in docs/parity.md are those that the simulation gives."""

from __future__ import annotations

from pathlib import Path

from benchmarks.verdict_rates import render, simulate

PAGE = (Path(__file__).parent.parent / "docs" / "parity.md").read_text()


def test_the_page_has_the_rates_of_200_simulated_pairs() -> None:
    rates = simulate()
    assert sum(rate.pairs for rate in rates) == 200
    assert render(rates) in PAGE


def test_no_seed_gives_false_alarms_and_each_fault_beyond_the_bound_is_mostly_found() -> None:
    for seed in (1, 2):
        none, *faulty, within = simulate(seed)
        assert (none.fault, none.wrong, none.forced) == ("none", 0, 0)
        assert max(rate.wrong for rate in faulty) <= 10
        assert sum(rate.forced for rate in faulty) == 0
        assert within.wrong == within.pairs
