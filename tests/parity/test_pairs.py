"""Which rows a run has, and how long a stream is waited for."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.parity.pairs import choose_pairs, still_needed

EVERY = ["cli", "mlx-server", "engine", "dense", "paged", "cache-miss", "cache-hit", "batch-4", "mlx-batch-4"]


def test_the_pairs_are_those_of_the_specification() -> None:
    assert choose_pairs(EVERY) == [
        ("cli", "mlx-server"),
        ("cli", "engine"),
        ("cli", "dense"),
        ("cli", "paged"),
        ("engine", "dense"),
        ("dense", "paged"),
        ("dense", "cache-miss"),
        ("cache-miss", "cache-hit"),
        ("dense", "batch-4"),
        ("cli", "mlx-batch-4"),
    ]


@pytest.mark.parametrize(
    ("paths", "pairs"),
    [
        ([], []),
        (["cli"], []),
        (["mlx-server", "engine"], [("mlx-server", "engine")]),
        (["engine", "paged", "mlx-batch-12"], [("engine", "paged"), ("engine", "mlx-batch-12")]),
        (["cli", "mlx-batch-12", "mine"], [("cli", "mlx-batch-12"), ("cli", "mine")]),
        (["cli", "mlx-batch-x"], [("cli", "mlx-batch-x")]),
    ],
)
def test_a_path_without_a_partner_is_compared_with_the_first(paths: list[str], pairs: list[tuple[str, str]]) -> None:
    assert choose_pairs(paths) == pairs


@given(st.lists(st.sampled_from([*EVERY, "mine", "other"]), unique=True, max_size=8))
def test_every_path_stands_in_a_row_and_all_pairs_are_all(paths: list[str]) -> None:
    paths.sort(key=[*EVERY, "mine", "other"].index)
    chosen = choose_pairs(paths)
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= set(combinations(paths, 2))
    assert len(paths) < 2 or {path for pair in chosen for path in pair} == set(paths)
    assert choose_pairs(paths, every=True) == list(combinations(paths, 2))


def test_of_the_telling_pairs_few_streams_are_held() -> None:
    pairs, done, held = choose_pairs(EVERY), set[str](), []
    for path in EVERY:
        done.add(path)
        held.append(len(still_needed(pairs, done) & done))
    assert held == [1, 1, 2, 2, 2, 3, 2, 1, 0]
