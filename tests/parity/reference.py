"""The verdict rules read a second time from the specification, by brute force, and streams to try them on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isnan, nan
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from mlxcel_engine.parity.stream import Stream

Row = NDArray[np.float32]
BOUNDS = (2.0**-9, 0.125, 0.5)  # values are multiples of a quarter of it: gaps and noise meet the bounds exactly


@dataclass(frozen=True)
class Expected:
    """What must come out; ``kind`` tells apart the reasons for one verdict."""

    kind: str
    verdict: str
    index: int | None = None
    tokens: tuple[int | None, int | None] = (None, None)
    logits: str | None = None
    noise: float | None = None


def apart(a: float, b: float) -> float:
    """The difference of two logprobs: none between equal infinities, no limit to it where one is no number."""
    if isnan(a) or isnan(b):
        return inf
    return 0.0 if a == b else abs(a - b)


def reference(left: Stream, right: Stream, bound: float) -> Expected:
    """The rules of the specification, one after the other, for greedy streams."""
    if left.unavailable or right.unavailable:
        return Expected("n/a", "n/a")
    if left.invalid or right.invalid:
        return Expected("invalid path", "invalid")
    if left.prompt_sha256 != right.prompt_sha256:
        return Expected("invalid prompt", "invalid")
    if not left.ids and not right.ids:
        return Expected("invalid empty", "invalid")

    i = 0
    while i < len(left.ids) and i < len(right.ids) and left.ids[i] == right.ids[i]:
        i += 1
    rows = list(zip(left.logprobs, right.logprobs, strict=False))[: i + 1]  # their contexts are common
    steps = [max(apart(float(x), float(y)) for x, y in zip(a, b, strict=True)) for a, b in rows]
    noise = max(steps[:i]) if i else None
    logits = "close" if all(step <= bound for step in steps) else "differ"
    if all(a.view(np.uint32).tolist() == b.view(np.uint32).tolist() for a, b in rows):
        logits = "bitwise"
    tokens = left.ids[i] if i < len(left.ids) else None, right.ids[i] if i < len(right.ids) else None
    rest = (i, tokens, logits if rows else None, noise)

    if tokens == (None, None):
        if left.finish_reason != right.finish_reason:
            return Expected("finish reason", "diverged", *rest)
        verdict = "identical" if noise is not None and noise <= bound else "drift"
        kind = f"identical {logits}" if verdict == "identical" else "drift"
        return Expected(kind, verdict, None, (None, None), logits, noise)
    if tokens[0] is None or tokens[1] is None:
        return Expected("prefix" if i else "empty prefix", "diverged", *rest)
    gaps = [
        apart(float(stream.logprobs[i][tokens[0]]), float(stream.logprobs[i][tokens[1]])) for stream in (left, right)
    ]
    if noise is None:
        near = max(gaps) <= bound
        return Expected("near-tie at 0" if near else "diverged at 0", "near-tie" if near else "diverged", *rest)
    if noise > bound:
        return Expected("diverged by noise", "diverged", *rest)
    near = max(gaps) <= 2 * noise
    return Expected("near-tie later" if near else "diverged by gap", "near-tie" if near else "diverged", *rest)


def greedy(path: str, rows: list[Row], finish_reason: str = "length") -> Stream:
    """What a greedy loop makes of these rows: the largest, the lowest id on ties."""
    ids = tuple(int(np.argmax(np.where(np.isnan(row), -np.inf, row))) for row in rows)
    return stream_of(path, rows, ids, finish_reason)


def stream_of(path: str, rows: list[Row], ids: tuple[int, ...], finish_reason: str = "length") -> Stream:
    return Stream(path, "hash", ids, rows, " ".join(map(str, ids)), finish_reason)


def rows_of(*rows: tuple[float, ...]) -> list[Row]:
    return [np.array(row, dtype=np.float32) for row in rows]


class Pair(NamedTuple):
    """The arguments of a comparison."""

    left: Stream
    right: Stream
    bound: float


@st.composite
def pairs(draw: st.DrawFn, free_ids: bool = False) -> Pair:
    """A greedy stream and a copy with noise, at times cut short or at fault; ``free_ids`` are not the largest."""
    steps, vocab, bound = draw(st.integers(0, 5)), draw(st.integers(2, 6)), draw(st.sampled_from(BOUNDS))
    spread, depth = draw(st.sampled_from([0, 0, 1, 2, 4, 6])), draw(st.sampled_from([2, 40, 200]))
    base = draw(hnp.arrays(np.int64, (steps, vocab), elements=st.integers(-depth, 0)))
    noise = draw(hnp.arrays(np.int64, (steps, vocab), elements=st.integers(-spread, spread)))
    sides = [np.array(side * (bound / 4), dtype=np.float32) for side in (base, base + noise)]
    if steps and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, steps - 1)), draw(st.integers(0, vocab - 1))
        for side in draw(st.sampled_from([sides, sides[:1], sides[1:]])):
            side[at] = draw(st.sampled_from([-inf, -inf, nan]))

    streams = []
    for path, side in zip("LR", sides, strict=True):
        length = steps if draw(st.integers(0, 5)) else draw(st.integers(0, steps))
        stream = greedy(path, list(side[:length]), draw(st.sampled_from(["length", "length", "length", "stop"])))
        if free_ids:
            stream = replace(stream, ids=tuple(draw(st.integers(0, vocab - 1)) for _ in stream.ids))
        streams.append(stream)
    if draw(st.integers(0, 5)) == 0:
        faults = [Stream("F", "hash", unavailable="why"), Stream("F", "hash", invalid="why")]
        faulty = draw(st.sampled_from([*faults, replace(streams[0], prompt_sha256="other")]))
        streams[draw(st.integers(0, 1))] = faulty
    return Pair(streams[0], streams[1], bound)


def has_nan(pair: Pair) -> bool:
    return any(bool(np.isnan(row).any()) for row in (*pair.left.logprobs, *pair.right.logprobs))
