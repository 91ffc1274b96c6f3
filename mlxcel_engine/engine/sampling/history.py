"""The tokens of one sequence, prompt and generated, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEP = 256  # tokens of room added at a time


class TokenHistory:
    """A growing uint32 buffer. How many of its tokens count is the caller's to know: a shorter history is a prefix."""

    def __init__(self, prompt: Sequence[int]) -> None:
        room = np.zeros(len(prompt) + _STEP, dtype=np.uint32)
        room[: len(prompt)] = prompt
        self._buffer = mx.array(room)

    def put(self, index: int, token: mx.array) -> None:
        """Write ``token`` (integer ``[1]``, lazy) at ``index``, at most one past what was written."""
        if index >= self._buffer.shape[0]:
            self._buffer = mx.concatenate([self._buffer, mx.zeros(_STEP, dtype=mx.uint32)])
        self._buffer[index : index + 1] = token.astype(mx.uint32)

    def tokens(self, start: int, stop: int) -> mx.array:
        """The tokens ``[start, stop)``, uint32."""
        return self._buffer[start:stop]
