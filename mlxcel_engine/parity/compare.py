"""Tells rounding from a bug: compares two streams and gives the verdict. No MLX.

The *noise* of a pair is the largest logprob difference on the steps before the streams differ. With per-logprob
noise of at most e, a gap between two candidates moves by at most 2e; so two greedy loops can part at a step by
rounding alone only where the gap there is no larger than twice the noise seen before it.

A seeded draw is an argmax, too: of the score of each token (tempered logprob plus noise that is a function of seed and
position). The gap is then one of scores, in nats of the logprobs: times the temperature. A filter may keep a token on
one side and drop it on the other; there is no gap then, and the difference of the two logprob rows takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.parity.stream import Stream, is_bitwise, step_difference

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlxcel_engine.records.parity import LogitsClass, VerdictName

    Scorer = Callable[[Stream, int], NDArray[np.float32]]
    """What ``[V]`` (nats, -inf where filtered) a stream's token at a step was the largest of."""

NOISE_BOUNDS = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.5}


def greedy_score(stream: Stream, index: int) -> NDArray[np.float32]:
    """The logprobs themselves."""
    return stream.logprobs[index]


@dataclass(frozen=True)
class Comparison:
    """The outcome for one pair; ``index`` and the tokens tell where they first differ, ``noise`` is in nats.

    ``logits`` and ``differences``, the largest one of each step (nats), cover every step with a common context, the
    first divergent one included. The gaps are how far each side's token led the other's at that step (nats); infinite
    where the other was filtered, None where there is no such token.
    """

    verdict: VerdictName
    reason: str = ""
    index: int | None = None
    left_token: int | None = None
    right_token: int | None = None
    logits: LogitsClass | None = None
    noise: float | None = None
    left_gap: float | None = None
    right_gap: float | None = None
    differences: tuple[float, ...] = ()


def compare(left: Stream, right: Stream, bound: float, score: Scorer = greedy_score) -> Comparison:
    """Compare two streams of one case; ``bound`` (nats) is what noise of the dtype may reach.

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
    return _compare_tokens(left, right, bound, score)


def _compare_tokens(left: Stream, right: Stream, bound: float, score: Scorer) -> Comparison:
    shared = min(len(left.ids), len(right.ids))
    index = next((i for i in range(shared) if left.ids[i] != right.ids[i]), shared)
    rows = list(zip(left.logprobs[: index + 1], right.logprobs[: index + 1], strict=False))
    differences = tuple(step_difference(a, b) for a, b in rows)
    noise = max(differences[:index], default=None)
    found = Comparison(
        "identical", logits=_logits_class(rows, differences, bound), noise=noise, differences=differences
    )
    diverged = replace(
        found, verdict="diverged", index=index, left_token=_token(left, index), right_token=_token(right, index)
    )
    if index < shared:
        return _judge_divergence(left, right, diverged, bound, score)
    if len(left.ids) != len(right.ids):
        longer = left if len(left.ids) > len(right.ids) else right
        return replace(diverged, reason=f"{longer.path} goes on after {index} tokens")
    if left.finish_reason != right.finish_reason:
        reason = f"same ids, but {left.path} ends by {left.finish_reason} and {right.path} by {right.finish_reason}"
        return replace(diverged, reason=reason)
    if left.text != right.text:
        return replace(diverged, reason="same ids, but the texts differ")
    if noise is not None and noise > bound:
        reason = f"same ids, but the noise {noise:.2g} is beyond the bound {bound:g}"
        return replace(found, verdict="drift", reason=reason)
    return found


def _judge_divergence(left: Stream, right: Stream, diverged: Comparison, bound: float, score: Scorer) -> Comparison:
    """Rounding or a bug, at the step where both streams go on with another token."""
    index, noise = len(diverged.differences) - 1, diverged.noise
    sizes = [stream.logprobs[index].size for stream in (left, right)]
    if sizes[0] != sizes[1]:
        return replace(diverged, reason=f"{left.path} has {sizes[0]} logprobs at that step, {right.path} {sizes[1]}")
    gaps = []
    for stream, other in ((left, right), (right, left)):
        own = stream.ids[index]
        if not np.isfinite(stream.logprobs[index][own]) or np.isnan(stream.logprobs[index]).any():
            return replace(diverged, reason=f"{stream.path} has no finite logprobs at that step")
        scores = score(stream, index)
        if scores[own] < scores.max():
            return replace(diverged, reason=f"{stream.path} took a token that is not its own best")
        gaps.append(float(scores[own]) - float(scores[other.ids[index]]))
    judged = replace(diverged, left_gap=gaps[0], right_gap=gaps[1])
    if noise is not None and noise > bound:
        return replace(judged, reason=f"the noise before it, {noise:.2g}, is beyond the bound {bound:g}")
    limit = bound if noise is None else 2 * noise
    name = f"the bound {bound:g}" if noise is None else f"twice the noise {noise:.2g}"
    measured, what = max(gaps), "the gap"
    if measured == float("inf"):
        measured, what = diverged.differences[index], "a filter dropped one of the two, and the difference"
    if measured <= limit:
        return replace(judged, verdict="near-tie", reason=f"{what} {measured:.2g} is within {name}")
    return replace(judged, reason=f"{what} {measured:.2g} is beyond {name}")


def _token(stream: Stream, index: int) -> int | None:
    return stream.ids[index] if index < len(stream.ids) else None


def _logits_class(
    rows: list[tuple[NDArray[np.float32], NDArray[np.float32]]], differences: tuple[float, ...], bound: float
) -> LogitsClass | None:
    if not rows:
        return None
    if any(difference > bound for difference in differences):
        return "differ"
    return "bitwise" if all(is_bitwise(a, b) for a, b in rows) else "close"
