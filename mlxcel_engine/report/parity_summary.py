"""All prompts of a record on one line a case and pair. Only renders."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

from mlxcel_engine.records.parity import VerdictName
from mlxcel_engine.report.table import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from mlxcel_engine.records.parity import ParityRow


def summary_table(rows: Sequence[ParityRow], make: Callable[..., Table]) -> Table:
    """How often each pair of each case had which verdict, the largest noise, and the earliest difference."""
    table = make("case", "pair", "prompts", "verdicts", "bitwise", "noise", "earliest difference")
    groups: dict[tuple[str, str, str], list[ParityRow]] = {}
    for row in rows:
        groups.setdefault((row.case, row.left, row.right), []).append(row)
    for (case, left, right), members in groups.items():
        counts = Counter(row.verdict for row in members)
        verdicts = ", ".join(f"{counts[name]} {name}" for name in get_args(VerdictName) if counts[name])
        bitwise = sum(row.logits == "bitwise" for row in members)
        noises = [row.max_abs_logprob_diff for row in members if row.max_abs_logprob_diff is not None]
        parted = [(row.index, row.prompt) for row in members if row.index is not None]
        earliest = plain(f"{min(parted)[0]} ({min(parted)[1]})" if parted else "-")
        noise = f"{max(noises):.2g}" if noises else "-"
        table.add_row(
            plain(case), plain(f"{left} - {right}"), str(len(members)), verdicts, str(bitwise), noise, earliest
        )
    return table
