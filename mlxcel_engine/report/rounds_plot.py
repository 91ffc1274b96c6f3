"""A picture of the rounds: each arm's decode speed against the reference, round by round, over the null band."""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from mlxcel_engine.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.records.rounds import Comparison, RoundsRecord

_LEFT, _TOP, _HEIGHT, _GAP, _RIGHT = 70, 50, 220, 70, 230
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for any colour vision
_LEAST_STEP = 0.1  # percent between two ticks


def rounds_plot(record: RoundsRecord) -> str:
    """Draw an SVG with a panel for each context: a line an arm, rings of null runs, and their whole range as a band."""
    panels: dict[tuple[int, int], list[Comparison]] = {}
    for row in record.rows:
        if row.metric == "decode_tok_s" and row.n:
            panels.setdefault((row.ctx, row.batch), []).append(row)
    width = max(60 * record.config.rounds, 300)
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + width + _RIGHT} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, ((ctx, batch), rows) in enumerate(panels.items()):
        title = f"decode tok/s against {record.config.arms[0].name}, ctx {ctx}" + (f", batch {batch}" * (batch > 1))
        parts += _Panel(rows, record.config.rounds, width, _TOP + index * (_HEIGHT + _GAP)).draw(printable(title))
    return "\n".join([*parts, "</svg>", ""])


class _Panel:
    """One context: x is the round, y the change in percent."""

    def __init__(self, rows: Sequence[Comparison], rounds: int, width: int, top: int) -> None:
        self._rows, self._rounds, self._width, self._top = rows, rounds, width, top
        self._null = [pct for row in rows if row.null for _, pct in _points(row)]
        values = [0.0, *(pct for row in rows for _, pct in _points(row))]
        self._step = _step(max(values) - min(values))
        self._low = floor(min(values) / self._step) * self._step
        self._high = max(ceil(max(values) / self._step) * self._step, self._low + self._step)

    def draw(self, title: str) -> list[str]:
        """Axes, band, lines, legend."""
        parts = [f'<text x="{_LEFT}" y="{self._top - 14}" font-weight="bold">{escape(title)}</text>', *self._axes()]
        if self._null:
            parts.append(self._band())
        for index, row in enumerate(self._rows):
            parts += self._line(row, _COLOURS[index % len(_COLOURS)], self._top + 14 + 18 * index)
        return parts

    def _x(self, number: int) -> float:
        return _LEFT + self._width * (number + 0.5) / self._rounds

    def _y(self, pct: float) -> float:
        return self._top + _HEIGHT * (self._high - pct) / (self._high - self._low)

    def _axes(self) -> list[str]:
        parts: list[str] = []
        for tick in range(round((self._high - self._low) / self._step) + 1):
            pct = self._low + tick * self._step
            pct = 0.0 if abs(pct) < self._step / 2 else pct
            y, colour = self._y(pct), "#ddd" if pct else "#333"
            parts.append(f'<path d="M{_LEFT} {y:.1f}h{self._width}" stroke="{colour}"/>')
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{pct:+.4g} %</text>')
        for number in range(0, self._rounds, max(1, self._rounds // 20)):
            x, y = self._x(number), self._top + _HEIGHT + 16
            parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{number + 1}</text>')
        return parts

    def _band(self) -> str:
        top, bottom = self._y(max(self._null)), self._y(min(self._null))
        return (
            f'<rect x="{_LEFT}" y="{top:.1f}" width="{self._width}" height="{max(bottom - top, 1):.1f}" '
            'fill="#999" fill-opacity="0.25"><title>null band</title></rect>'
        )

    def _line(self, row: Comparison, colour: str, legend_y: int) -> list[str]:
        points = [(self._x(number), self._y(pct)) for number, pct in _points(row)]
        look = f'fill="none" stroke="{colour}"' if row.null else f'fill="{colour}"'
        parts = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>' for x, y in points]
        if not row.null:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        legend_x = _LEFT + self._width + 20
        said = f"{row.arm}, {row.path}: {'null' if row.null else row.verdict}"
        parts.append(f'<circle cx="{legend_x}" cy="{legend_y - 4}" r="4" {look}/>')
        parts.append(f'<text x="{legend_x + 10}" y="{legend_y}">{escape(printable(said))}</text>')
        return parts


def _points(row: Comparison) -> list[tuple[int, float]]:
    """The (round, change in percent) of a row."""
    return [(number, pct) for number, pct in enumerate(row.deltas_pct) if pct is not None]


def _step(span: float) -> float:
    """The distance of the ticks, 1, 2 or 5 times a power of ten, so that ``span`` percent takes 8 of them at most."""
    if span <= 8 * _LEAST_STEP:
        return _LEAST_STEP
    power = 10.0 ** floor(log10(span / 8))
    return next(power * times for times in (1, 2, 5, 10, 20) if span <= 8 * power * times)
