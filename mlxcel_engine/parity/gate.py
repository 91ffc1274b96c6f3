"""Whether a run passes ``--expect-identical``. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.parity.pairs import is_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.records.parity import ParityRow

# These compute the same sums in the same order at B=1 for the same pieces of the prompt, so under the deterministic
# switch equal means bitwise. (`mlx_lm.server` cuts a thinking tag off the end of a prompt as a piece of its own.)
BITWISE_PATHS = frozenset({"cli", "mlx-server", "engine", "dense", "paged"})


@dataclass(frozen=True)
class GateResult:
    """``failures`` names each row that fails; ``compared`` counts the pairs that were compared at all."""

    failures: tuple[str, ...]
    compared: int

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 3 nothing was compared."""
        if self.failures:
            return 1
        return 0 if self.compared else 3


def judge(rows: Sequence[ParityRow], *, allow_near_tie: bool = False, invariant: bool = False) -> GateResult:
    """Apply the gate to the rows of a run; ``n/a`` rows neither pass nor fail.

    In an ``invariant`` run two paths of ours are bitwise equal, whatever they do. ``mlx-lm``'s loops run other shapes
    there, so that a pair with one of them may part at a near-tie.
    """
    failures = (_failure(row, allow_near_tie, invariant) for row in rows)
    compared = sum(row.verdict not in ("n/a", "invalid") for row in rows)
    return GateResult(tuple(failure for failure in failures if failure), compared)


def _failure(row: ParityRow, allow_near_tie: bool, invariant: bool) -> str | None:
    name = f"{row.case}, {row.prompt}: {row.left} against {row.right}"
    ours = is_ours(row.left) and is_ours(row.right)
    allow_near_tie = allow_near_tie or (invariant and not ours)
    bitwise = ours if invariant else _computes_the_same_sums(row)
    if row.verdict in ("diverged", "drift", "invalid") or (row.verdict == "near-tie" and not allow_near_tie):
        where = "" if row.index is None else f" at {row.index}"
        return f"{name}: {row.verdict}{where} ({row.reason})"
    if row.verdict != "n/a" and row.logits != "bitwise" and bitwise:
        return f"{name}: {row.verdict}, but its logits are {row.logits}, not bitwise"
    return None


def _computes_the_same_sums(row: ParityRow) -> bool:
    left, right = row.evidence.left, row.evidence.right
    same_pieces = left is None or right is None or left.partition == right.partition
    return same_pieces and {row.left, row.right} <= BITWISE_PATHS
