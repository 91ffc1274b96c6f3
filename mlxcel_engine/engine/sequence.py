"""One row's whole state, and what is done to the rows of a step together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.types import RowError, SequenceId, SequenceSpec
from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from collections import deque

    from mlxcel_engine.engine.plan import PrefillPlan
    from mlxcel_engine.engine.sampling.row import RowSampler


@dataclass
class Sequence:
    """One row's whole state.

    ``next_token`` uint32 ``[1]`` is what its next step feeds, maybe not computed yet; None while that step draws from
    ``opening``, the logits ``[1, V]`` behind a prompt without a tail. ``fed`` is what its last steps fed. ``forwarded``
    counts the tokens whose KV is held.
    """

    id: SequenceId
    spec: SequenceSpec
    plan: PrefillPlan
    sampler: RowSampler
    next_token: mx.array | None
    forwarded: int
    fed: deque[mx.array | None]
    opening: mx.array | None = None


def fitting(rows: list[Sequence], logits: mx.array, errors: list[RowError]) -> tuple[list[Sequence], mx.array]:
    """Leave out the rows whose sampling names tokens that the model does not have; ``errors`` gets one for each."""
    misfits = [row.sampler.misfit(logits.shape[-1]) for row in rows]
    if not any(misfits):
        return rows, logits
    keep = [index for index, misfit in enumerate(misfits) if misfit is None]
    found = [
        RowError(row.id, RunError(f"sequence {row.id}: {misfit}")) for row, misfit in zip(rows, misfits, strict=True)
    ]
    errors += [error for error, misfit in zip(found, misfits, strict=True) if misfit is not None]
    if not keep:
        raise errors[-1].error
    return [rows[index] for index in keep], logits[mx.array(keep)]


def join(arrays: list[mx.array]) -> mx.array:
    """Concatenate along the rows; a single array as it is."""
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)


def padded(tokens: mx.array, width: int | None) -> mx.array:
    """Lengthen uint32 ``[B]`` to ``[width]`` by tokens of id 0; without a width, as they are."""
    missing = (width or 0) - tokens.shape[0]
    return mx.concatenate([tokens, mx.zeros((missing,), dtype=tokens.dtype)]) if missing > 0 else tokens


def in_order(rows: list[Sequence], done: list[Sequence], logits: mx.array) -> tuple[list[Sequence], mx.array]:
    """Put the rows that are ``done``, and their logits ``[B, V]``, into the order of ``rows``."""
    places = {row.id: place for place, row in enumerate(rows)}
    order = sorted(range(len(done)), key=lambda index: places[done[index].id])
    if order == list(range(len(done))):
        return done, logits
    return [done[index] for index in order], logits[mx.array(order)]
