"""One decode step of many rows: which of them go through the model together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.engine.sequence import Sequence, in_order, join, padded
from mlxcel_engine.engine.types import RowError
from mlxcel_engine.errors import RunError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx

    from mlxcel_engine.engine.kv.store import KvForward
    from mlxcel_engine.engine.shapes import FixedShapes

    Forward = Callable[[list[Sequence], mx.array, int | None], tuple[mx.array, KvForward]]


class Decoding:
    """Feeds the rows of a step their next tokens, in as few forwards as their storage and the invariant mode allow.

    ``forward`` runs the model on rows and inputs ``[B, 1]``, padded to a width if one is given: logits ``[B, 1, V]``,
    and what makes the forward count. ``pads`` is whether fewer rows are padded to the width of the invariant mode
    (:class:`FixedShapes`), ``pairs`` whether, without it, a single row is padded to two.
    """

    def __init__(self, forward: Forward, *, batched: bool, shapes: FixedShapes | None, pads: bool, pairs: bool) -> None:
        self._forward, self._batched, self._shapes = forward, batched, shapes
        self._pads, self._pairs = pads, pairs

    def decode(self, rows: list[Sequence]) -> tuple[list[Sequence], list[KvForward], mx.array, list[RowError]]:
        """Feed every row its next token: the rows that went through, what commits them, logits ``[B, V]``, errors."""
        done, forwards, parts, errors = [], [], [], []
        for group in self._groups(rows):
            try:
                logits, forward = self._step_group(group)
            except Exception as error:  # whatever the model's code raises must not touch the other rows
                if self._batched or len(rows) == 1:
                    raise
                (row,) = group
                errors.append(RowError(row.id, RunError(f"sequence {row.id}: its forward failed ({one_line(error)})")))
                continue
            done.extend(group)
            parts.append(logits)
            if forward is not None:
                forwards.append(forward)
        if not parts:
            raise errors[0].error
        done, logits = in_order(rows, done, join(parts))
        return done, forwards, logits, errors

    def _groups(self, rows: list[Sequence]) -> list[list[Sequence]]:
        """Divide the rows of a step into those of one forward each, and those that need none."""
        if not self._batched:
            return [[row] for row in rows]
        if self._shapes is None:
            return [rows]
        fed = [row for row in rows if row.next_token is not None]
        return [*([row] for row in rows if row.next_token is None), *self._shapes.groups(fed)]

    def _step_group(self, rows: list[Sequence]) -> tuple[mx.array, KvForward | None]:
        """Feed a group: logits ``[B, V]``, and what commits the forward; None for a row that draws without one."""
        tokens = [row.next_token for row in rows if row.next_token is not None]
        if not tokens and rows[0].opening is not None:
            return rows[0].opening, None
        width = self._width(len(rows))
        logits, forward = self._forward(rows, padded(join(tokens), width)[:, None], width)
        return logits[: len(rows), -1, :], forward

    def _width(self, rows: int) -> int | None:
        """The width that a decode forward of ``rows`` rows is given; None where its shapes follow the batch."""
        if not self._batched:
            return None
        if self._shapes is None:
            return 2 if self._pairs and rows == 1 else None
        return self._shapes.width if self._pads else rows
