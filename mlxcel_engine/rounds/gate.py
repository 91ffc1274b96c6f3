"""Whether rounds pass ``--gate``: no arm lost more decode speed than the threshold, and all was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.rounds.notes import not_compared
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
        return 3 if self.unmeasured else 0


def judge(record: RoundsRecord, *, expect_same_tokens: bool = False) -> GateResult:
    """Apply the gate to the decode speed of every arm but the null arms, cell by cell, over the rounds that count."""
    threshold = next(one.pct for one in record.thresholds if one.metric == "decode_tok_s")
    rows = [row for row in record.rows if row.metric == "decode_tok_s" and not row.null]
    slow = (_regression(row, threshold) for row in rows if threshold is not None)
    other = (_other_tokens(row) for row in rows if expect_same_tokens)
    failures = tuple(failure for failure in (*slow, *other) if failure)
    return GateResult(failures, tuple(_unmeasured(record, rows, threshold)), sum(row.counted > 0 for row in rows))


def _unmeasured(record: RoundsRecord, rows: list[Comparison], threshold: float | None) -> Iterator[str]:
    for arm in record.config.arms[1:]:
        if all(row.arm != arm.name for row in rows):
            yield f"{arm.name}: no pair to compare"
    for row in rows:
        if not row.counted:
            yield (
                f"{row.arm}, {row.path} at {row.ctx} tokens: of {row.n} pairs none counts, which takes a quiet host "
                f"and {row.reference}'s null run"
            )
    yield from not_compared(record.config, Measured(record.runs))
    if threshold is None:
        yield "no null pair was measured on a quiet host, so there is no automatic threshold"


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
