"""How far apart two paths are on every step when both are fed the same tokens. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.parity.stream import step_difference
from mlxcel_engine.records.parity import ForcedRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxcel_engine.parity.pairs import Pair
    from mlxcel_engine.parity.stream import Stream


@dataclass(frozen=True)
class ForcedStep:
    """One step's differences in nats: largest and mean over the vocabulary, KL(left, right); same likeliest token."""

    largest: float
    mean: float
    kl: float
    same_top: bool


def measure_step(left: NDArray[np.float32], right: NDArray[np.float32]) -> ForcedStep:
    """Measure two rows of logprobs ``[V]``; a NaN or one-sided infinity makes the figures it enters infinite."""
    largest = step_difference(left, right)
    if not np.isfinite(largest):
        return ForcedStep(largest, float("inf"), float("inf"), bool(left.argmax() == right.argmax()))
    alive = np.isfinite(left)
    one, two = left[alive].astype(np.float64), right[alive].astype(np.float64)
    kl = float(np.sum(np.exp(one) * (one - two)))
    return ForcedStep(largest, float(np.abs(one - two).mean()), max(kl, 0.0), bool(left.argmax() == right.argmax()))


def compare_forced(case: str, prompt: str, pair: Pair, reference: str, left: Stream, right: Stream) -> ForcedRow:
    """Compare two streams that were fed the tokens of ``reference``."""
    row = ForcedRow(case=case, prompt=prompt, left=pair[0], right=pair[1], reference=reference)
    for stream in (left, right):
        missing = stream.unavailable or stream.invalid
        if missing is not None:
            return row.model_copy(update={"reason": f"{stream.path}: {missing}"})
    if left.ids != right.ids:
        return row.model_copy(update={"reason": "the two were not fed the same tokens"})
    steps = [measure_step(a, b) for a, b in zip(left.logprobs, right.logprobs, strict=True)]
    if not steps:
        return row.model_copy(update={"reason": "there is no step to compare"})
    return row.model_copy(
        update={
            "steps": len(steps),
            "max_abs_logprob_diff": max(step.largest for step in steps),
            "mean_abs_logprob_diff": float(np.mean([step.mean for step in steps])),
            "kl_max": max(step.kl for step in steps),
            "kl_mean": float(np.mean([step.kl for step in steps])),
            "top1_agreement": float(np.mean([step.same_top for step in steps])),
        }
    )
