"""Which pairs of paths are rows, and in which order. No MLX."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# ``*`` stands for the number of rows in a batch.
_PAIRS = (
    ("cli", "mlx-server"),
    ("cli", "engine"),
    ("cli", "dense"),
    ("cli", "paged"),
    ("engine", "dense"),
    ("dense", "paged"),
    ("dense", "cache-miss"),
    ("cache-miss", "cache-hit"),
    ("dense", "batch-*"),
    ("cli", "mlx-batch-*"),
)

Pair = tuple[str, str]


def choose_pairs(paths: Sequence[str], *, every: bool = False) -> list[Pair]:
    """Choose the pairs among ``paths``: the telling ones, or all of them.

    A path that stands in no telling pair (a custom one, or one whose partner was not chosen) is compared with the
    first path, and the first one with the second.
    """
    if every:
        return list(combinations(paths, 2))
    known = {_general(path): path for path in paths}
    found = [(known[left], known[right]) for left, right in _PAIRS if left in known and right in known]
    paired = {path for pair in found for path in pair}
    found += [(paths[0], path) for path in paths[1:] if path not in paired]
    alone = len(paths) > 1 and all(paths[0] not in pair for pair in found)
    return [(paths[0], paths[1]), *found] if alone else found


def still_needed(pairs: Iterable[Pair], done: set[str]) -> set[str]:
    """Return the paths whose stream some pair still waits for when ``done`` have run."""
    return {path for pair in pairs if not done.issuperset(pair) for path in pair}


def _general(path: str) -> str:
    stem, _, number = path.rpartition("-")
    return f"{stem}-*" if stem in ("batch", "mlx-batch") and number.isdigit() else path
