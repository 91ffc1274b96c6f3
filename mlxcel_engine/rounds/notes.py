"""What a reader of a summary has to know beside its figures, a line each."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

from mlxcel_engine.rounds.arms import contexts_of
from mlxcel_engine.rounds.schedule import label, missing, slots_of
from mlxcel_engine.rounds.statistics import MIN_ROUNDS
from mlxcel_engine.rounds.threshold import STEP_PCT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcel_engine.records.rounds import Comparison, RoundsConfig, Run
    from mlxcel_engine.rounds.pairs import Measured

_MATTERS = ("mlx", "mlx_lm", "project", "project_commit", "python", "device_name", "dtype", "blas", "deterministic")


def notes_of(config: RoundsConfig, runs: Sequence[Run], rows: Sequence[Comparison], measured: Measured) -> list[str]:
    """List missing and failed runs, what was not compared, differing tokens, busy rounds, versions that differ."""
    failed = [describe_failure(run) for run in runs if run.status != "ok"]
    return [
        *unfinished(config, runs),
        *failed,
        *not_compared(config, measured),
        *lacking_cells(config, runs, measured),
        *_tokens(rows),
        *_busy(runs),
        *_restless_nulls(rows),
        *_environments(runs),
    ]


def describe_failure(run: Run) -> str:
    """Name a run that failed, and why it did."""
    return f"{label(run.arm, run.null)}, round {run.round + 1}: {run.status}: {run.reason}"


def unfinished(config: RoundsConfig, runs: Sequence[Run]) -> Iterator[str]:
    """Say how many of the runs are there that ``config`` asks for, unless all are."""
    due = slots_of(config)
    left = len(missing(due, [(run.round, run.arm, run.null) for run in runs]))
    if left:
        yield f"{len(due) - left} of {len(due)} runs are there; --resume makes the others"


def lacking_cells(config: RoundsConfig, runs: Sequence[Run], measured: Measured) -> Iterator[str]:
    """Name each path and context that an arm was asked for and runs of it that printed records have no figure for."""
    for arm in config.arms:
        for null in (False, True):
            printed = [run for run in runs if (run.arm, run.null) == (arm.name, null) and run.lines]
            reasons = measured.unmeasured(arm.name, null)
            for ctx, path in product(contexts_of(arm, config), measured.paths(arm.name, null)):
                without = sum((path, ctx) not in measured.places(run) for run in printed)
                if without:
                    why = f" ({reasons[path, ctx]})" if (path, ctx) in reasons else ""
                    where = f"{label(arm.name, null)}: {path} at {ctx} tokens"
                    yield f"{where}: no figure in {without} of {len(printed)} runs{why}"


def not_compared(config: RoundsConfig, measured: Measured) -> Iterator[str]:
    """Name each cell of an arm that the reference has no figure for."""
    reference = config.arms[0].name
    for arm in config.arms[1:]:
        for path, ctx, batch in measured.cells(arm.name, null=False):
            if measured.reference_cell(arm.name, reference, (path, ctx, batch)) is None:
                yield f"{arm.name}: {path} at {ctx} tokens, batch {batch}: {reference} has no such figure, not compared"


def _tokens(rows: Sequence[Comparison]) -> Iterator[str]:
    for row in rows:
        if row.metric != "decode_tok_s":
            continue
        where = f"{row.arm} against {row.reference}, {row.path} at {row.ctx} tokens"
        if row.unequal_tokens:
            yield f"{where}: {row.unequal_tokens} pairs have other token counts and are not compared"
        elif row.same_tokens is False:
            yield f"{where}: they do not generate the same tokens"


def _busy(runs: Sequence[Run]) -> Iterator[str]:
    rounds = sorted({run.round + 1 for run in runs if run.busy})
    if rounds:
        first = next(run for run in runs if run.busy)
        shown = ", ".join(map(str, rounds))
        yield (
            f"the host was busy in round {shown} ({label(first.arm, first.null)}: {'; '.join(first.busy)}): "
            "no claim rests on these rounds; --hostgate waits for a quiet host, --host-cpu says what is quiet"
        )


def _restless_nulls(rows: Sequence[Comparison]) -> Iterator[str]:
    for row in rows:
        if not row.null or row.counted < MIN_ROUNDS or row.ci_low_pct is None or row.ci_high_pct is None:
            continue
        if max(row.ci_low_pct, -row.ci_high_pct) > STEP_PCT:
            metric = "decode speed" if row.metric == "decode_tok_s" else "TTFT"
            yield (
                f"{row.arm} and {row.reference} are the same, but their {metric} at {row.ctx} tokens differs by "
                f"{row.ci_low_pct:+.1f} to {row.ci_high_pct:+.1f} %: distrust differences of that size"
            )


def _environments(runs: Sequence[Run]) -> Iterator[str]:
    """Name what differs between the arms, or between the runs of one."""
    measured = [run for run in runs if run.lines]
    for field in _MATTERS:
        by_arm: dict[str, list[str]] = {}
        for run in measured:
            value = _short(str(run.lines[0]["environment"].get(field)))
            if value not in by_arm.setdefault(run.arm, []):
                by_arm[run.arm].append(value)
        if len({value for values in by_arm.values() for value in values}) > 1:
            shown = ", ".join(f"{arm} {' and '.join(values)}" for arm, values in by_arm.items())
            yield f"{field} differs: {shown}"


def _short(value: str) -> str:
    """A commit's first twelve digits, and whether files were changed on it; anything else as it is."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]{28}", r"\1", value)
