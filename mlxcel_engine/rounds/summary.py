"""The summary of a rounds file: levels, paired comparisons with their verdicts, drift. Computed from its runs alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.records.rounds import Comparison, Drift, Level, RoundsRecord, Threshold
from mlxcel_engine.rounds.notes import notes_of
from mlxcel_engine.rounds.pairs import METRICS, Measured, Pair, gain_of
from mlxcel_engine.rounds.schedule import label
from mlxcel_engine.rounds.statistics import median_interval
from mlxcel_engine.rounds.threshold import automatic_threshold
from mlxcel_engine.rounds.verdict import judge, judge_null

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.records.rounds import Metric, RoundsConfig, RoundsHeader, Run
    from mlxcel_engine.rounds.pairs import Cell


@dataclass(frozen=True)
class Versus:
    """An arm in a cell, beside what it is compared with; ``pairs`` has a value a round."""

    arm: str
    reference: str
    null: bool
    cell: Cell
    reference_cell: Cell
    pairs: list[Pair | None]


def summarise(header: RoundsHeader, runs: Sequence[Run], threshold_pct: float | None) -> RoundsRecord:
    """Summarise ``runs``; a threshold of None is set by the null arms, for each metric by its own."""
    config, measured = header.config, Measured(runs)
    nulls = [one for arm in _null_arms(config) for one in _null_versus(measured, arm, config)]
    arms = [one for arm in config.arms[1:] for one in _versus(measured, arm.name, config)]
    thresholds = {metric: _threshold(metric, threshold_pct, nulls) for metric in METRICS}
    rows = [_compare(one, metric, thresholds[metric]) for one in (*arms, *nulls) for metric in METRICS]
    return RoundsRecord(
        created=header.created,
        environment=_environments(runs),
        config=config,
        thresholds=list(thresholds.values()),
        rows=rows,
        levels=_levels(measured, config),
        drift=_drift(measured, config),
        notes=notes_of(config, runs, rows, measured),
        runs=list(runs),
    )


def _null_arms(config: RoundsConfig) -> list[str]:
    names = [arm.name for arm in config.arms]
    return names if config.null_every_arm else names[:1]


def _versus(measured: Measured, arm: str, config: RoundsConfig) -> list[Versus]:
    reference = config.arms[0].name
    found: list[Versus] = []
    for cell in measured.cells(arm, null=False):
        other = measured.reference_cell(arm, reference, cell)
        if other is not None:
            pairs = measured.pairs(arm, reference, cell, other, config.rounds)
            found.append(Versus(arm, reference, False, cell, other, pairs))
    return found


def _null_versus(measured: Measured, arm: str, config: RoundsConfig) -> list[Versus]:
    return [
        Versus(label(arm, null=True), arm, True, cell, cell, measured.null_pairs(arm, cell, config.rounds))
        for cell in measured.cells(arm, null=True)
    ]


def _threshold(metric: Metric, given: float | None, nulls: list[Versus]) -> Threshold:
    if given is not None:
        return Threshold(metric=metric, pct=given, automatic=False)
    pairs = [pair for one in nulls for pair in one.pairs if pair is not None and not pair.busy]
    deltas = (pair.delta_pct(metric) for pair in pairs)
    return Threshold(
        metric=metric, pct=automatic_threshold(delta for delta in deltas if delta is not None), automatic=True
    )


def _compare(one: Versus, metric: Metric, threshold: Threshold) -> Comparison:
    deltas = [None if pair is None else pair.delta_pct(metric) for pair in one.pairs]
    there = np.array([delta for delta in deltas if delta is not None])
    present = [pair for pair in one.pairs if pair is not None]
    gains = [gain for pair in present if (gain := _gains(pair, metric, one.null)) is not None]
    against, against_null = np.array(gains, dtype=np.float64).reshape(-1, 2).T
    verdict = judge_null(against, threshold) if one.null else judge(against, against_null, threshold)
    low, high = (None, None) if not len(there) else (float(edge) for edge in median_interval(there))
    path, ctx, batch = one.cell
    return Comparison(
        arm=one.arm,
        reference=one.reference,
        null=one.null,
        path=path,
        reference_path=one.reference_cell[0],
        ctx=ctx,
        batch=batch,
        metric=metric,
        n=len(there),
        median_pct=float(np.median(there)) if len(there) else None,
        low_pct=float(there.min()) if len(there) else None,
        high_pct=float(there.max()) if len(there) else None,
        ci_low_pct=low,
        ci_high_pct=high,
        verdict=verdict.word,
        reason=verdict.reason,
        deltas_pct=deltas,
        counted=len(gains),
        counted_median_pct=gain_of(float(np.median(against)), metric) if gains else None,
        ahead=verdict.ahead,
        behind=verdict.behind,
        unequal_tokens=sum(not pair.comparable for pair in present),
        same_tokens=all(pair.arm.token_hash == pair.reference.token_hash for pair in present) if present else None,
        rounds_needed=verdict.rounds_needed,
    )


def _gains(pair: Pair, metric: Metric, null: bool) -> tuple[float, float] | None:
    """The gains of a round on the reference and on its null run (0 for a null arm); None where no claim may rest."""
    delta, null_delta = pair.delta_pct(metric), 0.0 if null else pair.null_delta_pct(metric)
    if pair.busy or delta is None or null_delta is None:
        return None
    return gain_of(delta, metric), gain_of(null_delta, metric)


def _levels(measured: Measured, config: RoundsConfig) -> list[Level]:
    arms = [*((arm.name, False) for arm in config.arms), *((arm, True) for arm in _null_arms(config))]
    levels: list[Level] = []
    for arm, null in arms:
        for cell in measured.cells(arm, null):
            for metric in METRICS:
                values = measured.values(arm, null, cell, metric)
                if values:
                    levels.append(_level(label(arm, null), null, cell, metric, values))
    return levels


def _level(arm: str, null: bool, cell: Cell, metric: Metric, values: list[float]) -> Level:
    path, ctx, batch = cell
    return Level(
        arm=arm,
        null=null,
        path=path,
        ctx=ctx,
        batch=batch,
        metric=metric,
        n=len(values),
        median=float(np.median(values)),
        low=min(values),
        high=max(values),
    )


def _drift(measured: Measured, config: RoundsConfig) -> list[Drift]:
    """Put every decode speed over its arm's median; a round's level is the median of these, arms and paths mixed."""
    found: dict[tuple[int, int], list[list[float]]] = {}
    medians: dict[tuple[str, bool, Cell], float] = {}
    for number in range(config.rounds):
        for arm, null, one in measured.of_round(number):
            key = (arm, null, one.cell)
            if key not in medians:
                values = measured.values(arm, null, one.cell, "decode_tok_s")
                medians[key] = float(np.median(values)) if values else 0.0
            levels = found.setdefault((one.ctx, one.batch), [[] for _ in range(config.rounds)])
            if one.decode_tok_s and medians[key]:
                levels[number].append(100 * one.decode_tok_s / medians[key])
    return [
        Drift(ctx=ctx, batch=batch, levels_pct=[float(np.median(level)) if level else None for level in levels])
        for (ctx, batch), levels in found.items()
    ]


def _environments(runs: Sequence[Run]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for run in runs:
        if run.lines:
            found.setdefault(run.arm, run.lines[0]["environment"])
    return found
