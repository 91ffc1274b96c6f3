"""Whether rounds pass ``--gate``: no arm lost more decode speed than the threshold, and all was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.rounds.notes import lacking_cells, not_compared, unfinished
from mlxcel_engine.rounds.pairs import Measured
from mlxcel_engine.rounds.statistics import ROUNDING_PCT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.records.rounds import Comparison, RoundsRecord

GATE_FAILED = 1


@dataclass(frozen=True)
class GateResult:
    """``failures`` names each regression, ``unmeasured`` each arm, cell or threshold that there is no figure for.

    ``compared`` counts the cells with rounds that count.
    """

    failures: tuple[str, ...]
    unmeasured: tuple[str, ...]
    compared: int

    @property
    def exit_code(self) -> int:
        """1 a regression, 3 something was not measured, 0 passed; what is known to be wrong comes first."""
        if self.failures:
            return GATE_FAILED
        return 3 if self.unmeasured or not self.compared else 0


def judge(record: RoundsRecord, *, expect_same_tokens: bool = False) -> GateResult:
    """Apply the gate to the decode speed of every arm but the null arms, cell by cell, over the rounds that count."""
    threshold = next(one.pct for one in record.thresholds if one.metric == "decode_tok_s")
    rows = [row for row in record.rows if row.metric == "decode_tok_s" and not row.null]
    slow = (_regression(row, threshold) for row in rows if threshold is not None)
    other = (_other_tokens(row) for row in rows if expect_same_tokens)
    failures = tuple(failure for failure in (*slow, *other) if failure)
    return GateResult(failures, tuple(_unmeasured(record, rows, threshold)), sum(row.counted > 0 for row in rows))


def _unmeasured(record: RoundsRecord, rows: list[Comparison], threshold: float | None) -> Iterator[str]:
    if len(record.config.arms) < 2:
        yield "there is one arm, and nothing to compare it with"
    yield from unfinished(record.config, record.runs)
    for arm in record.config.arms[1:]:
        if all(row.arm != arm.name for row in rows):
            yield f"{arm.name}: no pair to compare"
    for row in rows:
        if lacking := _lacking(row):
            yield f"{row.arm}, {row.path} at {row.ctx} tokens: {lacking}"
    measured = Measured(record.runs)
    yield from not_compared(record.config, measured)
    yield from lacking_cells(record.config, record.runs, measured)
    if threshold is None:
        yield "no null pair was measured on a quiet host, so there is no automatic threshold"


def _lacking(row: Comparison) -> str | None:
    """Why a cell has no round that counts, or why some of its pairs can count for nothing."""
    if row.unequal_tokens:
        return (
            f"in {row.unequal_tokens} of its pairs with {row.reference} the token counts differ, they are not compared"
        )
    if row.counted:
        return None
    if row.n:
        needs = f"a quiet host and {row.reference}'s null run with as many tokens"
        return f"of {row.n} pairs none counts, which takes {needs}"
    return f"in none of its pairs with {row.reference} do both have a decode speed"


def _regression(row: Comparison, threshold: float) -> str | None:
    if row.counted_median_pct is None or row.counted_median_pct >= -threshold - ROUNDING_PCT:
        return None
    return (
        f"{row.arm}, {row.path} at {row.ctx} tokens: {row.counted_median_pct:+.1f} % decode speed against "
        f"{row.reference} (median of the {row.counted} rounds that count; all: {row.low_pct:+.1f} to "
        f"{row.high_pct:+.1f}), beyond the threshold of {threshold:g} %"
    )


def _other_tokens(row: Comparison) -> str | None:
    if row.same_tokens is not False:
        return None
    return f"{row.arm}, {row.path} at {row.ctx} tokens: it does not generate the tokens of {row.reference}"
