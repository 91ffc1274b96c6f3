"""What is known of a pair that differs, in a few lines. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.report.sparkline import sparkline

if TYPE_CHECKING:
    from mlxcel_engine.records.parity import BisectTrial, Located, ParityRow


def difference_lines(row: ParityRow, *, ascii_only: bool = False) -> list[str]:
    """The lines of a row; none for one that is identical."""
    if not row.reason:
        return []
    where = "" if row.index is None else f" at {row.index}"
    tokens = ""
    if row.left_token is not None or row.right_token is not None:
        sides = _token(row.left_token, row.left_text), _token(row.right_token, row.right_text)
        tokens = f" {sides[0]} against {sides[1]},"
    lines = [f"{row.left} - {row.right}, {row.verdict}{where}:{tokens} {row.reason}"]
    if row.left_gap is not None and row.right_gap is not None:
        lines.append(f"  gaps: {row.left} {row.left_gap:.3g}, {row.right} {row.right_gap:.3g}")
    if row.located is not None:
        lines += [f"  {line}" for line in _located(row.located, ascii_only)]
    if row.bisected:
        lines.append(f"  {_bisected(row.bisected)}")
    return lines


def _token(token: int | None, text: str | None) -> str:
    return "the end" if token is None else f"{token} {text!r}" if text is not None else str(token)


def _located(located: Located, ascii_only: bool) -> list[str]:
    if located.problem is not None:
        return [f"layers at step {located.step}: {located.problem}"]
    if located.first is None:
        return [f"layers at step {located.step}: all equal, logits too; what differs comes after them"]
    by_name = {layer.layer: layer for layer in located.layers}
    first, jump = by_name[located.first], by_name[located.jump or located.first]
    marks = sparkline([layer.relative for layer in located.layers], len(located.layers), ascii_only=ascii_only)
    said = f"layers at step {located.step}: {first.layer} differs first (by {first.relative:.2g} of its size)"
    if jump.layer != first.layer:
        said += f", the jump is at {jump.layer} ({jump.relative:.2g})"
    return [said, f"each layer's relative difference, the logits last: {marks}"]


def _bisected(trials: list[BisectTrial]) -> str:
    shown = []
    for trial in trials:
        where = "" if trial.index is None else f" at {trial.index}"
        shown.append(f"{trial.change} ({trial.side}) {trial.verdict}{where}")
    end = f"agrees again with: {trials[-1].change}" if trials[-1].verdict == "identical" else "none of them agrees"
    return f"changed one by one: {', '.join(shown)}; {end}"
