"""Whether rounds pass ``--gate``: no arm lost more decode speed than the threshold, and all was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.rounds.statistics import ROUNDING_PCT

if TYPE_CHECKING:
    from mlxcel_engine.records.rounds import Comparison, RoundsRecord


@dataclass(frozen=True)
class GateResult:
    """``failures`` names each regression, ``unmeasured`` each arm or threshold that there is no figure for."""

    failures: tuple[str, ...]
    unmeasured: tuple[str, ...]
    compared: int

    @property
    def exit_code(self) -> int:
        """1 a regression, 3 something was not measured, 0 passed; what is known to be wrong comes first."""
        if self.failures:
            return 1
        return 3 if self.unmeasured else 0


def judge(record: RoundsRecord, *, expect_same_tokens: bool = False) -> GateResult:
    """Apply the gate to the decode speed of every arm but the null arms, cell by cell."""
    threshold = next(one.pct for one in record.thresholds if one.metric == "decode_tok_s")
    rows = [row for row in record.rows if row.metric == "decode_tok_s" and not row.null]
    unmeasured = [f"{arm.name}: no pair to compare" for arm in record.config.arms[1:] if not _measured(rows, arm.name)]
    if threshold is None:
        unmeasured.append("no null pair was measured, so there is no automatic threshold")
    slow = (_regression(row, threshold) for row in rows if threshold is not None)
    other = (_other_tokens(row) for row in rows if expect_same_tokens)
    failures = tuple(failure for failure in (*slow, *other) if failure)
    return GateResult(failures, tuple(unmeasured), sum(row.n > 0 for row in rows))


def _measured(rows: list[Comparison], arm: str) -> bool:
    mine = [row for row in rows if row.arm == arm]
    return bool(mine) and all(row.n for row in mine)


def _regression(row: Comparison, threshold: float) -> str | None:
    if row.median_pct is None or row.median_pct >= -threshold - ROUNDING_PCT:
        return None
    return (
        f"{row.arm}, {row.path} at {row.ctx} tokens: {row.median_pct:+.1f} % decode speed against {row.reference} "
        f"(median of {row.n}, range {row.low_pct:+.1f} to {row.high_pct:+.1f}), beyond the threshold of {threshold:g} %"
    )


def _other_tokens(row: Comparison) -> str | None:
    if row.same_tokens is not False:
        return None
    return f"{row.arm}, {row.path} at {row.ctx} tokens: it does not generate the tokens of {row.reference}"
