"""The threshold that the null arms give: how far one round of an arm against itself can be off."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

STEP_PCT = 0.5


def automatic_threshold(null_deltas_pct: Iterable[float]) -> float | None:
    """The widest of the null arms' per-round deltas, rounded up to the next 0.5 %; None without any.

    A delta on a step stays there, and the least answer is one step: no noise at all was never measured.
    """
    widest = max((abs(delta) for delta in null_deltas_pct), default=None)
    if widest is None:
        return None
    return max(1, ceil(round(widest / STEP_PCT, 9))) * STEP_PCT
