"""Which rows of a decode step are read together: a shared prefix once, rows of one length in one call. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Span: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class Stretch:
    """Consecutive slots of one row or of several: ``tokens`` from ``start + i * stride`` on in row ``i``."""

    start: int
    tokens: int
    stride: int = 0

    @classmethod
    def of(cls, span: Span) -> Stretch:
        """The slots ``[first, behind)``."""
        return cls(span[0], span[1] - span[0])


@dataclass(frozen=True)
class Group:
    """Rows of the batch whose own tokens one call reads; one row may have several stretches, several rows have one."""

    rows: tuple[int, ...]
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True)
class Cluster:
    """Rows that begin with the same slots, ``prefix`` (empty for rows that share nothing), and go on in ``groups``."""

    prefix: tuple[Stretch, ...]
    groups: tuple[Group, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the batch, in the order of the groups."""
        return tuple(row for group in self.groups for row in group.rows)


def group_rows(own: Iterable[tuple[int, Sequence[Span]]]) -> tuple[Group, ...]:
    """Put rows together that have one span each, of equal length and at a regular distance; the others stay alone."""
    groups: list[Group] = []
    for row, spans in sorted(own, key=lambda item: (item[1][0][1] - item[1][0][0], item[1][0][0])):
        joined = _joined(groups[-1], spans) if groups else None
        if joined is None:
            groups.append(Group((row,), tuple(Stretch.of(span) for span in spans)))
        else:
            groups[-1] = Group((*groups[-1].rows, row), (joined,))
    return tuple(groups)


def _joined(group: Group, spans: Sequence[Span]) -> Stretch | None:
    """The stretch of ``group`` with one more row, if the row fits in."""
    if len(group.stretches) > 1 or len(spans) > 1:
        return None
    (before,), (start, stop) = group.stretches, spans[0]
    distance = start - before.start - (len(group.rows) - 1) * before.stride
    if stop - start != before.tokens or distance <= 0 or (before.stride and before.stride != distance):
        return None
    return Stretch(before.start, before.tokens, distance)


def shared_prefixes(tables: Sequence[list[int]], least: int) -> list[tuple[list[int], int]]:
    """Sort rows into clusters by the blocks that they begin with.

    Returns ``(rows, blocks)`` per cluster: several rows with at least ``least`` blocks in common, and at last all
    other rows with 0.
    """
    order = sorted(range(len(tables)), key=lambda row: tables[row])
    clusters: list[tuple[list[int], int]] = [([row], len(tables[row])) for row in order[:1]]
    for before, row in pairwise(order):
        common = _common(tables[before], tables[row])
        rows, blocks = clusters[-1]
        if common >= least:
            clusters[-1] = ([*rows, row], min(blocks, common))
        else:
            clusters.append(([row], len(tables[row])))
    shared = [(sorted(rows), blocks) for rows, blocks in clusters if len(rows) > 1]
    alone = sorted(rows[0] for rows, _ in clusters if len(rows) == 1)
    return [*shared, (alone, 0)] if alone else shared


def _common(left: list[int], right: list[int]) -> int:
    """How many items two tables have in common at their beginning."""
    different = (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(different, min(len(left), len(right)))


def progressions(slots: Sequence[int]) -> list[tuple[slice, slice]]:
    """Cut ``slots``, all different, into runs at a regular rising distance: ``(positions, slots)`` of each run."""
    runs: list[tuple[slice, slice]] = []
    first = 0
    while first < len(slots):
        step = slots[first + 1] - slots[first] if first + 1 < len(slots) else 0
        last = first
        while step > 0 and last + 1 < len(slots) and slots[last + 1] - slots[last] == step:
            last += 1
        runs.append((slice(first, last + 1), slice(slots[first], slots[last] + 1, max(step, 1))))
        first = last + 1
    return runs
