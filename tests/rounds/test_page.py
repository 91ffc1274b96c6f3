"""docs/rounds.md names every file of the package, and the numbers of rounds that the rule asks for."""

from __future__ import annotations

import re
from pathlib import Path

from mlxcel_engine.rounds.statistics import MIN_ROUNDS, rounds_ahead_needed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rounds.md").read_text()


def test_every_file_stands_in_its_table() -> None:
    table = PAGE[PAGE.index("## The files") :]
    named = set(re.findall(r"`([a-z]+\.py)`", table))
    assert named == {file.name for file in (ROOT / "mlxcel_engine" / "rounds").glob("*.py")} - {"__init__.py"}


def test_the_bounds_that_it_prints_are_those_of_the_rule() -> None:
    (printed,) = re.findall(r"the bound is exact: (.*?)\.\n", PAGE)
    pairs = [(int(ahead), int(rounds)) for ahead, rounds in re.findall(r"(\d+) (?:of|rounds of) (\d+)", printed)]
    assert pairs == [(rounds_ahead_needed(rounds), rounds) for rounds in (MIN_ROUNDS, 10, 20)]
