"""The forwards of an engine: a piece of one prompt, or the next tokens of many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.dispatch import faster_functions
from mlxcel_engine.engine.families import multiplies_row_by_row
from mlxcel_engine.engine.sequence import Sequence, in_order, join, padded
from mlxcel_engine.engine.types import RowError
from mlxcel_engine.errors import RunError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.nn as nn

    from mlxcel_engine.engine.kv.store import KvForward, KvStore
    from mlxcel_engine.engine.plan import Piece
    from mlxcel_engine.engine.shapes import FixedShapes


class Forwards:
    """Runs ``model`` on sequences over their KV; what it returns beside the logits makes a forward count."""

    def __init__(self, model: nn.Module, kv: KvStore, shapes: FixedShapes | None, *, exact: bool) -> None:
        self._model: Callable[..., mx.array] = model
        self._kv = kv
        self._shapes = shapes
        self._exact = exact
        self._pads = mx.default_device().type != mx.DeviceType.cpu or not multiplies_row_by_row(model)

    def prefill(self, row: Sequence, piece: Piece) -> tuple[mx.array, KvForward]:
        """Feed a piece of a prompt: logits ``[1, L, V]``, not computed yet, and what commits the forward."""
        inputs = mx.array([row.spec.prompt[piece.start : piece.stop]], dtype=mx.uint32)
        return self._forward([row], inputs, None if self._shapes is None else 1)

    def decode(self, rows: list[Sequence]) -> tuple[list[Sequence], list[KvForward], mx.array, list[RowError]]:
        """Feed every row its next token: the rows that went through, what commits them, logits ``[B, V]``, errors."""
        done, forwards, parts, errors = [], [], [], []
        for group in self._groups(rows):
            try:
                logits, forward = self._step_group(group)
            except Exception as error:  # whatever the model's code raises must not touch the other rows
                if self._kv.batched or len(rows) == 1:
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
        if not self._kv.batched:
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
        """Rows of a decode forward in the invariant mode; None without it, where shapes follow the batch."""
        if self._shapes is None or not self._kv.batched:
            return None
        return self._shapes.width if self._pads else rows

    def _forward(self, rows: list[Sequence], inputs: mx.array, width: int | None = None) -> tuple[mx.array, KvForward]:
        """Run the model on ``inputs`` ``[B, L]``; logits ``[B, L, V]``, and what commits the forward.

        With a ``width`` the shapes are fixed: the inputs are as many, and those behind ``rows`` are padding.
        """
        forward = self._kv.forward([row.id for row in rows], inputs.shape[1], width)
        with faster_functions(allowed=not self._exact):
            logits = self._model(inputs, cache=forward.caches)
        forward.verify()
        return logits, forward
