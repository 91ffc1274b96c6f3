"""Finds, for every arm and cell, the measurements of each round that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.rounds.measurement import Measurement, asked_paths, measurements, unmeasured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcel_engine.records.rounds import Metric, Run

METRICS: tuple[Metric, ...] = ("decode_tok_s", "ttft_ms")

Key = tuple[int, str, bool]
Cell = tuple[str, int, int]


def value_of(measurement: Measurement, metric: Metric) -> float | None:
    """The measured figure; None where there is none, as for the decode speed of a single token."""
    value = measurement.decode_tok_s if metric == "decode_tok_s" else measurement.ttft_ms
    return value if value else None


def gain_of(delta_pct: float, metric: Metric) -> float:
    """A metric's change in percent as a gain in speed: more tok/s is better, more ms is worse."""
    return delta_pct if metric == "decode_tok_s" else -delta_pct


@dataclass(frozen=True)
class Pair:
    """The runs of one round: an arm's, its reference's, and the reference's null run where there is one."""

    arm: Measurement
    reference: Measurement
    null: Measurement | None
    busy: bool

    @property
    def comparable(self) -> bool:
        """Whether both generated as many tokens."""
        return self.arm.tokens == self.reference.tokens

    def delta_pct(self, metric: Metric) -> float | None:
        """The change of the metric against the reference; None where the two cannot be compared."""
        return _change(self.arm, self.reference, metric)

    def null_delta_pct(self, metric: Metric) -> float | None:
        """The change of the metric against the reference's null run; None without one to compare with."""
        return None if self.null is None else _change(self.arm, self.null, metric)


def _change(one: Measurement, other: Measurement, metric: Metric) -> float | None:
    value, base = value_of(one, metric), value_of(other, metric)
    if value is None or base is None or one.tokens != other.tokens:
        return None
    return 100 * (value - base) / base


class Measured:
    """Every run's measurements by (round, arm, null) and cell (path, context, batch); a failed one's, too."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._busy: dict[Key, bool] = {_key(run): bool(run.busy) for run in runs}
        self._cells: dict[Key, dict[Cell, Measurement]] = {
            _key(run): {one.cell: one for one in measurements(run.lines)} for run in runs
        }
        self._paths: dict[tuple[str, bool], set[str]] = {}
        for run in runs:
            self._paths.setdefault((run.arm, run.null), set()).update(asked_paths(run.lines))

    def cells(self, arm: str, null: bool) -> list[Cell]:
        """The cells that an arm measured in any round, in the order of its output."""
        found = (
            cell
            for (_, name, is_null), cells in self._cells.items()
            if (name, is_null) == (arm, null)
            for cell in cells
        )
        return list(dict.fromkeys(found))

    def places(self, run: Run) -> set[tuple[str, int]]:
        """The paths and contexts that a run has a measurement of."""
        return {(path, ctx) for path, ctx, _ in self._cells[_key(run)]}

    def reference_cell(self, arm: str, reference: str, cell: Cell) -> Cell | None:
        """The cell of the reference that an arm's cell is compared with; None when it measured no such one.

        Of the same context and batch, and of the same path, unless both arms were asked for one path only.
        """
        path, ctx, batch = cell
        paths = [self.paths(name, null=False) for name in (arm, reference)]
        if all(len(each) == 1 for each in paths):
            (path,) = paths[1]
        there = (cells for (_, name, null), cells in self._cells.items() if (name, null) == (reference, False))
        return (path, ctx, batch) if any((path, ctx, batch) in cells for cells in there) else None

    def unmeasured(self, arm: str, null: bool) -> dict[tuple[str, int], str]:
        """Why an arm has no figure, by path and context, where one of its runs said so."""
        found = (one for run in self._runs if (run.arm, run.null) == (arm, null) for one in unmeasured(run.lines))
        return {(one.path, one.ctx): one.reason for one in found}

    def paths(self, arm: str, null: bool) -> list[str]:
        """The paths that an arm was asked for, as its runs reported them, by name."""
        return sorted(self._paths.get((arm, null), ()))

    def values(self, arm: str, null: bool, cell: Cell, metric: Metric) -> list[float]:
        """An arm's figures in a cell, round by round."""
        found = (
            cells[cell]
            for (_, name, is_null), cells in self._cells.items()
            if (name, is_null) == (arm, null) and cell in cells
        )
        values = (value_of(one, metric) for one in found)
        return [value for value in values if value is not None]

    def pairs(self, arm: str, reference: str, cell: Cell, reference_cell: Cell, rounds: int) -> list[Pair | None]:
        """An arm and its reference, a value a round."""
        return [
            self._pair(
                (number, arm, False), (number, reference, False), (number, reference, True), cell, reference_cell
            )
            for number in range(rounds)
        ]

    def null_pairs(self, arm: str, cell: Cell, rounds: int) -> list[Pair | None]:
        """An arm's null run and the arm itself, a value a round."""
        return [self._pair((number, arm, True), (number, arm, False), None, cell, cell) for number in range(rounds)]

    def of_round(self, number: int) -> Iterator[tuple[str, bool, Measurement]]:
        """Every measurement of a round, with its arm."""
        for (its_round, arm, null), cells in self._cells.items():
            if its_round == number:
                yield from ((arm, null, one) for one in cells.values())

    def _pair(self, arm: Key, reference: Key, null: Key | None, cell: Cell, reference_cell: Cell) -> Pair | None:
        one, other = self._cells.get(arm, {}).get(cell), self._cells.get(reference, {}).get(reference_cell)
        if one is None or other is None:
            return None
        again = None if null is None else self._cells.get(null, {}).get(reference_cell)
        busy = any(self._busy.get(key, False) for key in (arm, reference, null) if key is not None)
        return Pair(one, other, again, busy)


def _key(run: Run) -> Key:
    return run.round, run.arm, run.null
