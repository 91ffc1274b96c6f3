"""The tables of a rounds record, and the same as a picture. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.report.svg import terminal_svg
from mlxcel_engine.report.table import make_table, plain, print_plainly

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mlxcel_engine.records.rounds import Comparison, Drift, Level, Metric, RoundsRecord

_SVG_WIDTH = 170  # columns
_STYLES = {"faster": "bold green", "slower": "bold red", "no difference": "green", "unresolved": "yellow"}
METRICS: dict[Metric, str] = {"decode_tok_s": "decode", "ttft_ms": "TTFT"}


def print_rounds(record: RoundsRecord, console: Console) -> None:
    """Print what ran, each arm's figures, the comparisons, the drift and what else a reader has to know."""
    print_plainly(console, lambda: _print(record, console))


def rounds_svg(record: RoundsRecord) -> str:
    """Draw the tables as a terminal's picture, an SVG that needs nothing from elsewhere."""
    return terminal_svg(lambda console: print_rounds(record, console), "mlxcel-engine rounds", _SVG_WIDTH)


def _print(record: RoundsRecord, console: Console) -> None:
    for line in _heading(record):
        console.print(plain(line))
    console.print()
    console.print(_levels(record, console))
    console.print()
    console.print(_comparisons(record, console))
    if record.drift:
        console.print()
    for drift in record.drift:
        console.print(plain(_drift(drift)))
    for note in record.notes:
        console.print(plain(f"note: {note}", style="yellow"))


def _heading(record: RoundsRecord) -> list[str]:
    config = record.config
    arms = [f"  {arm.text}{' (the reference)' if arm is config.arms[0] else ''}" for arm in config.arms]
    extra = f", all with {' '.join(config.extra)}" if config.extra else ""
    ctx = ", ".join(map(str, config.ctx))
    env = next(iter(record.environment.values()), {})
    versions = f"mlx {env.get('mlx')}, mlx-lm {env.get('mlx_lm')}, {env.get('dtype')}, on {env.get('device_name')}"
    return [
        f"{config.rounds} rounds of {len(config.arms)} arms on {config.model}, "
        f"ctx {ctx}, {config.max_tokens} new tokens{extra}:",
        *arms,
        versions if env else "nothing measured",
        "threshold: " + ", ".join(_threshold(record)),
    ]


def _threshold(record: RoundsRecord) -> list[str]:
    shown: list[str] = []
    for one in record.thresholds:
        origin = " (the widest null pair)" if one.automatic else ""
        shown.append(f"{METRICS[one.metric]} {'unknown' if one.pct is None else f'{one.pct:g} %'}{origin}")
    return shown


def _levels(record: RoundsRecord, console: Console) -> Table:
    numbers = ("ctx", "runs", "decode tok/s", "TTFT ms")
    table = make_table(
        console, "arm", "path", "ctx", "runs", "decode tok/s", "range", "TTFT ms", "range", right=numbers
    )
    cells = dict.fromkeys((level.arm, level.path, level.ctx, level.batch) for level in record.levels)
    for cell in cells:
        found = {one.metric: one for one in record.levels if (one.arm, one.path, one.ctx, one.batch) == cell}
        arm, path, ctx, batch = cell
        shown = (*_level(found.get("decode_tok_s"), 2), *_level(found.get("ttft_ms"), 1))
        runs = max(one.n for one in found.values())
        named = plain(path + (f" x{batch}" if batch > 1 else ""))
        table.add_row(arm, named, str(ctx), str(runs), *shown)
    return table


def _level(level: Level | None, digits: int) -> tuple[str, str]:
    if level is None:
        return "-", "-"
    return f"{level.median:.{digits}f}", f"{level.low:.{digits}f} to {level.high:.{digits}f}"


def _comparisons(record: RoundsRecord, console: Console) -> Table:
    columns = ("arm - reference", "path", "ctx", "figure", "median", "range", "95 % interval", "n", "verdict", "why")
    table = make_table(console, *columns, right=("ctx", "median", "n"))
    for row in record.rows:
        paths = row.path if row.path == row.reference_path else f"{row.path} - {row.reference_path}"
        paths += f" x{row.batch}" if row.batch > 1 else ""
        verdict = plain(row.verdict, style="dim" if row.null else _STYLES[row.verdict])
        pair, ctx, metric = f"{row.arm} - {row.reference}", str(row.ctx), METRICS[row.metric]
        table.add_row(pair, plain(paths), ctx, metric, *changes(row), str(row.n), verdict, plain(_why(row)))
    return table


def changes(row: Comparison) -> tuple[str, str, str]:
    """The median change, its range and its interval, in percent; ``-`` for what there is not."""
    if row.median_pct is None:
        return "-", "-", "-"
    return f"{_signed(row.median_pct)} %", _span(row.low_pct, row.high_pct), _span(row.ci_low_pct, row.ci_high_pct)


def _span(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_signed(low)} to {_signed(high)}"


def _signed(pct: float) -> str:
    """One digit behind the point, and no sign before a zero."""
    return f"{pct:+.1f}" if abs(pct) >= 0.05 else "0.0"


def _why(row: Comparison) -> str:
    if row.rounds_needed is None:
        return row.reason
    return f"{row.reason}; about {row.rounds_needed} rounds would probably resolve it"


def _drift(drift: Drift) -> str:
    known = [(level, number) for number, level in enumerate(drift.levels_pct, start=1) if level is not None]
    batch = f", batch {drift.batch}" if drift.batch > 1 else ""
    if not known:
        return f"drift at {drift.ctx} tokens{batch}: no decode speed"
    (low, slow), (high, fast) = min(known), max(known)
    return (
        f"drift at {drift.ctx} tokens{batch}: the rounds ran at {low:.1f} % (round {slow}) to {high:.1f} % "
        f"(round {fast}) of the median speed"
    )
