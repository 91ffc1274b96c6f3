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

_OURS = frozenset({"engine", "dense", "paged", "cache-miss", "cache-hit", "preempted"})
_OUR_STEMS = ("cache-hit-", "batch-", "paged-batch-")

Pair = tuple[str, str]


def is_ours(path: str) -> bool:
    """Whether the path runs our engine."""
    return path in _OURS or path.startswith(_OUR_STEMS)


def choose_pairs(paths: Sequence[str], *, every: bool = False, invariant: bool = False) -> list[Pair]:
    """Choose the pairs among ``paths``: the telling ones, or all of them.

    A path that stands in no telling pair (a custom one, or one whose partner was not chosen) is compared with the
    first path, and the first one with the second. ``invariant`` holds our paths against ``engine``.
    """
    if every:
        return list(combinations(paths, 2))
    found = _invariant_pairs(paths) if invariant else _telling_pairs(paths)
    paired = {path for pair in found for path in pair}
    found += [(paths[0], path) for path in paths[1:] if path not in paired]
    alone = len(paths) > 1 and all(paths[0] not in pair for pair in found)
    return [(paths[0], paths[1]), *found] if alone else found


def _telling_pairs(paths: Sequence[str]) -> list[Pair]:
    known = {_general(path): path for path in paths}
    return [(known[left], known[right]) for left, right in _PAIRS if left in known and right in known]


def _invariant_pairs(paths: Sequence[str]) -> list[Pair]:
    """Each of our paths with ``engine``, and ``engine`` and those of ``mlx-lm`` with ``cli``."""
    pairs = [("engine" if is_ours(path) and path != "engine" else "cli", path) for path in paths]
    return [(left, right) for left, right in pairs if left in paths and left != right]


def still_needed(pairs: Iterable[Pair], done: set[str]) -> set[str]:
    """Return the paths whose stream some pair still waits for when ``done`` have run."""
    return {path for pair in pairs if not done.issuperset(pair) for path in pair}


def _general(path: str) -> str:
    stem, _, number = path.rpartition("-")
    return f"{stem}-*" if stem in ("batch", "mlx-batch") and number.isdigit() else path
