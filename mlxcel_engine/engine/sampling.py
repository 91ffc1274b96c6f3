"""Samplers of one row: logprobs in, token out, on the device."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class RowSampler(Protocol):
    """Draws from logprobs ``[1, V]`` (nats); returns uint32 ``[1]``. One object per request, called once a step.

    :func:`greedy` keeps no state and is called for all greedy rows at once.
    """

    def __call__(self, logprobs: mx.array, /) -> mx.array:
        """Draw one token."""
        ...


def greedy(logprobs: mx.array) -> mx.array:
    """Return the likeliest token of each row, the lowest id on a tie; touches no random state."""
    return mx.argmax(logprobs, axis=-1)
