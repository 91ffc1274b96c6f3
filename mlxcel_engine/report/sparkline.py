"""A row of numbers as a row of marks, on one fixed scale, so that two of them can be compared."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCKS, _ASCII = "·▁▂▃▄▅▆▇█", ".12345678"
_LEAST = -7  # the decade of the lowest mark but that of 0
SCALE = "{zero} is 0, {low} at most 1e-07, one mark a decade, {high} 1 or more"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """At most ``width`` marks; of several values that share one, the largest counts."""
    marks = _ASCII if ascii_only else _BLOCKS
    count = min(len(values), width)
    bounds = [place * len(values) // count for place in range(count + 1)] if count else []
    groups = [values[start:stop] for start, stop in pairwise(bounds)]
    return "".join(marks[_level(max(group, key=_order))] for group in groups)


def scale(*, ascii_only: bool = False) -> str:
    """What the marks mean."""
    marks = _ASCII if ascii_only else _BLOCKS
    return SCALE.format(zero=marks[0], low=marks[1], high=marks[-1])


def _level(value: float) -> int:
    if math.isnan(value) or math.isinf(value):
        return 8
    if value <= 0:
        return 0
    return min(max(math.ceil(math.log10(value)) - _LEAST, 0), 7) + 1


def _order(value: float) -> float:
    return math.inf if math.isnan(value) else value
