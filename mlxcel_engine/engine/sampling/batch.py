"""The rows of one step, sampled together: greedy rows in one argmax, rows of equal settings in one draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlxcel_engine.engine.powers import log_softmax
from mlxcel_engine.engine.sampling.draw import draw_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.sampling.row import RowSampler


def greedy(logprobs: mx.array) -> mx.array:
    """Return the likeliest token of each row, the lowest id on a tie; touches no random state."""
    return mx.argmax(logprobs, axis=-1)


def sample_rows(rows: Sequence[RowSampler], logits: mx.array, *, exact: bool = True) -> tuple[mx.array, mx.array]:
    """Sample one token a row from logits ``[B, V]`` and take it into the row's history.

    Returns tokens uint32 ``[B]`` and logprobs ``[B, V]`` (nats, the dtype of the logits) after bias and penalties.
    Each row's result is bitwise that of the row alone. ``exact`` logprobs are bitwise those of ``generate_step``;
    otherwise float32 ones are computed by powers of two.
    """
    if any(row.processes for row in rows):
        processed = [row.process(logits[index : index + 1]) for index, row in enumerate(rows)]
        logits = mx.concatenate(processed) if len(rows) > 1 else processed[0]
    if exact or logits.dtype != mx.float32:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    else:
        logprobs = log_softmax(logits)
    tokens, mus = draw(rows, logprobs)
    for index, row in enumerate(rows):
        row.accept(tokens[index : index + 1] if len(rows) > 1 else tokens, mus[index])
    return tokens, logprobs


def draw(rows: Sequence[RowSampler], logprobs: mx.array) -> tuple[mx.array, Sequence[mx.array | None]]:
    """Draw a token a row, uint32 ``[B]``, and each row's next mirostat state; the rows stay as they are."""
    tokens, mus = _draw(rows, logprobs)
    forced = [row.forced for row in rows]
    if any(token is not None for token in forced):
        chosen = mx.array([token or 0 for token in forced], dtype=mx.uint32)
        tokens = mx.where(mx.array([token is not None for token in forced]), chosen, tokens)
    return tokens, mus


def _draw(rows: Sequence[RowSampler], logprobs: mx.array) -> tuple[mx.array, Sequence[mx.array | None]]:
    if len(rows) == 1:
        return _draw_group(rows, logprobs)
    groups: dict[object, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.settings.group, []).append(index)
    if len(groups) == 1:
        return _draw_group(rows, logprobs)
    parts: list[mx.array] = []
    mus: list[mx.array | None] = [None] * len(rows)
    for members in groups.values():
        tokens, states = _draw_group([rows[index] for index in members], logprobs[mx.array(members)])
        parts.append(tokens)
        for index, state in zip(members, states, strict=True):
            mus[index] = state
    order = np.argsort(np.concatenate(list(groups.values())))
    return mx.concatenate(parts)[mx.array(order.astype(np.uint32))], mus


def _draw_group(rows: Sequence[RowSampler], logprobs: mx.array) -> tuple[mx.array, Sequence[mx.array | None]]:
    settings = rows[0].settings
    if settings.greedy:
        return greedy(logprobs), [None] * len(rows)
    return draw_rows(logprobs, settings, [row.turn for row in rows])
