"""One path's answer to one prompt, as the comparison reads it. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Stream:
    """What a path generated.

    ``ids`` holds every sampled token, an ending EOS included; ``logprobs`` one float32 ``[V]`` row (nats) for each
    of them, the row that it was sampled from. ``unavailable`` says why the path cannot run this model,
    ``invalid`` why it did not do what its name claims; such a stream has no ids.
    """

    path: str
    prompt_sha256: str
    ids: tuple[int, ...] = ()
    logprobs: Sequence[NDArray[np.float32]] = ()
    text: str = ""
    finish_reason: str | None = None
    unavailable: str | None = None
    invalid: str | None = None

    def __post_init__(self) -> None:
        self.text.encode()  # what is no text, the record could not hold
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{self.path}: {len(self.ids)} ids but {len(self.logprobs)} rows of logprobs")
        for token, row in zip(self.ids, self.logprobs, strict=True):
            if row.ndim != 1:
                raise ValueError(f"{self.path}: logprobs of a step have the shape {row.shape}, not that of one row")
            if not 0 <= token < row.size:
                raise ValueError(f"{self.path}: id {token} is not in a vocabulary of {row.size}")


def step_difference(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """Largest absolute difference (nats) of two rows ``[V]``; equal infinities count 0, a NaN anywhere infinity."""
    if left.shape != right.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        difference = np.abs(left.astype(np.float64) - right.astype(np.float64))
    difference[left == right] = 0.0
    largest = float(difference.max(initial=0.0))
    return float("inf") if np.isnan(largest) else largest


def is_bitwise(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Whether two rows ``[V]`` hold the same bits."""
    same_kind = left.shape == right.shape and left.dtype == right.dtype
    return same_kind and left.tobytes() == right.tobytes()
