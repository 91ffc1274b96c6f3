"""Tells rounding from a bug: compares two streams and gives the verdict. No MLX.

The *noise* of a pair is the largest logprob difference on the steps before the streams differ. With per-logprob
noise of at most e, a gap between two candidates moves by at most 2e; so two greedy loops can part at a step by
rounding alone only where the gap there is no larger than twice the noise seen before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.parity.stream import Stream, is_bitwise, step_difference

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxcel_engine.records.parity import LogitsClass, VerdictName

NOISE_BOUNDS = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.5}


@dataclass(frozen=True)
class Comparison:
    """The outcome for one pair; ``index`` and the tokens tell where they first differ, ``noise`` is in nats.

    ``logits`` covers every step with a common context, the first divergent one included.
    """

    verdict: VerdictName
    reason: str = ""
    index: int | None = None
    left_token: int | None = None
    right_token: int | None = None
    logits: LogitsClass | None = None
    noise: float | None = None


def compare(left: Stream, right: Stream, bound: float) -> Comparison:
    """Compare two greedy streams; ``bound`` (nats) is what noise of the dtype may reach.

    Raises:
        ValueError: ``bound`` is negative or not finite.

    """
    if not 0 <= bound < float("inf"):
        raise ValueError(f"the noise bound must be a finite number of 0 or more, not {bound}")
    if left.prompt_sha256 != right.prompt_sha256:
        return Comparison("invalid", "the prompt ids differ")
    for stream in (left, right):
        if stream.unavailable is not None:
            return Comparison("n/a", f"{stream.path}: {stream.unavailable}")
    for stream in (left, right):
        if stream.invalid is not None:
            return Comparison("invalid", f"{stream.path}: {stream.invalid}")
    if not left.ids and not right.ids:
        return Comparison("invalid", "both streams are empty")
    return _compare_tokens(left, right, bound)


def _compare_tokens(left: Stream, right: Stream, bound: float) -> Comparison:
    shared = min(len(left.ids), len(right.ids))
    index = next((i for i in range(shared) if left.ids[i] != right.ids[i]), shared)
    differences = [step_difference(a, b) for a, b in zip(left.logprobs[:index], right.logprobs[:index], strict=True)]
    noise = max(differences, default=None)
    logits = _logits_class(left, right, index, bound)
    tokens = (_token(left, index), _token(right, index))

    if index < shared:
        verdict, reason = _judge_divergence(left, right, index, noise, bound)
        return Comparison(verdict, reason, index, *tokens, logits, noise)
    if len(left.ids) != len(right.ids):
        longer = left if len(left.ids) > len(right.ids) else right
        reason = f"{longer.path} goes on after {index} tokens"
        return Comparison("diverged", reason, index, *tokens, logits, noise)
    if left.finish_reason != right.finish_reason:
        reason = f"same ids, but {left.path} ends by {left.finish_reason} and {right.path} by {right.finish_reason}"
        return Comparison("diverged", reason, index, None, None, logits, noise)
    if left.text != right.text:
        return Comparison("diverged", "same ids, but the texts differ", index, None, None, logits, noise)
    if noise is not None and noise > bound:
        reason = f"same ids, but the noise {noise:.2g} is beyond the bound {bound:g}"
        return Comparison("drift", reason, logits=logits, noise=noise)
    return Comparison("identical", logits=logits, noise=noise)


def _judge_divergence(
    left: Stream, right: Stream, index: int, noise: float | None, bound: float
) -> tuple[VerdictName, str]:
    """Rounding or a bug, at the step where both streams go on with another token."""
    gaps = (
        _gap(left.logprobs[index], left.ids[index], right.ids[index]),
        _gap(right.logprobs[index], right.ids[index], left.ids[index]),
    )
    for stream in (left, right):
        row = stream.logprobs[index]
        if not np.isfinite(row[stream.ids[index]]) or np.isnan(row).any():
            return "diverged", f"{stream.path} has no finite logprobs at that step"
        if row[stream.ids[index]] < row.max():
            return "diverged", f"{stream.path} took a token that is not its own likeliest"
    gap = max(gaps)
    if noise is not None and noise > bound:
        return "diverged", f"the noise before it, {noise:.2g}, is beyond the bound {bound:g}"
    limit = bound if noise is None else 2 * noise
    name = f"the bound {bound:g}" if noise is None else f"twice the noise {noise:.2g}"
    if gap <= limit:
        return "near-tie", f"the gap {gap:.2g} is within {name}"
    return "diverged", f"the gap {gap:.2g} is beyond {name}"


def _gap(logprobs: NDArray[np.float32], own: int, other: int) -> float:
    """How far ``own``, which is finite, leads ``other`` (nats)."""
    return float(logprobs[own]) - float(logprobs[other])


def _token(stream: Stream, index: int) -> int | None:
    return stream.ids[index] if index < len(stream.ids) else None


def _logits_class(left: Stream, right: Stream, index: int, bound: float) -> LogitsClass | None:
    """Class the steps up to and including ``index``: their contexts are the same on both sides."""
    rows = list(zip(left.logprobs[: index + 1], right.logprobs[: index + 1], strict=False))
    if not rows:
        return None
    if any(step_difference(a, b) > bound for a, b in rows):
        return "differ"
    return "bitwise" if all(is_bitwise(a, b) for a, b in rows) else "close"
