"""How often the verdict rule is wrong, on 200 simulated pairs of streams: ``python -m benchmarks.verdict_rates``.

A pair is two greedy or two seeded (temperature 0.8) loops of 60 steps over a vocabulary of 200; the logits are a fixed
function of the tokens so far, so two loops that took another token go different ways. Both sides see them with rounding
noise (Student's t with 3 degrees of freedom, scaled to 1e-5 nats, as float32 batches show it). In half of the pairs
the two best candidates of about one step in ten are no further apart than that noise makes them. The right side of a
faulty pair has one fault more. A *false alarm* is a pair without a fault that is ``diverged`` or ``drift``; a *miss*
is a faulty one that is ``identical`` or ``near-tie``. Streams that part at a near-tie before the fault shows say
nothing of it; so the misses are counted a second time with the right side fed the left one's tokens, as
``--teacher-forced`` does, and a largest difference beyond the bound taken as found. No model is run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mlxcel_engine.parity.compare import NOISE_BOUNDS, compare, greedy_score
from mlxcel_engine.parity.stream import Stream, step_difference

if TYPE_CHECKING:
    from mlxcel_engine.parity.compare import Scorer

STEPS, VOCAB, ROUNDING, TEMPERATURE, EACH = 60, 200, 1e-5, 0.8, 20
Row = NDArray[np.float64]
Fault = Callable[[Row, int, np.random.Generator], Row]


def _skipped_penalty(logits: Row, step: int, rng: np.random.Generator) -> Row:
    changed = logits.copy()
    if step >= 10:
        changed[rng.integers(0, VOCAB, 5)] += 0.1
    return changed


FAULTS: dict[str, Fault | None] = {
    "none": None,
    "logits 3 % too large": lambda logits, _step, _rng: logits * 1.03,
    "penalty of 0.1 skipped": _skipped_penalty,
    "one wrong row": lambda logits, step, _rng: np.roll(logits, 1) if step == 20 else logits,
    "errors of 1e-2": lambda logits, _step, rng: logits + rng.normal(0, 1e-2, VOCAB),
    "errors of 2e-4, within the bound": lambda logits, _step, rng: logits + rng.normal(0, 2e-4, VOCAB),
}


@dataclass(frozen=True)
class Rate:
    """Of ``pairs`` pairs ``wrong`` got a verdict that they should not have, ``forced`` of them when forced, too."""

    fault: str
    pairs: int
    wrong: int
    forced: int


def simulate(seed: int = 0) -> list[Rate]:
    """Judge 100 pairs without a fault and 20 with each."""
    rates = []
    for number, (name, fault) in enumerate(FAULTS.items()):
        pairs = 5 * EACH if fault is None else EACH
        wrong = [_wrong(fault, [seed, number, pair]) for pair in range(pairs)]
        rates.append(Rate(name, pairs, sum(one for one, _ in wrong), sum(one and other for one, other in wrong)))
    return rates


def render(rates: list[Rate]) -> str:
    """The table of docs/parity.md."""
    lines = ["| fault of the right side | pairs | wrong verdicts | with `--teacher-forced` |", "|---|---|---|---|"]
    for rate in rates:
        kind = "false alarms" if rate.fault == "none" else "missed"
        shares = [f"{wrong} {kind} ({100 * wrong / rate.pairs:.0f} %)" for wrong in (rate.wrong, rate.forced)]
        lines.append(f"| {rate.fault} | {rate.pairs} | {shares[0]} | {shares[1]} |")
    return "\n".join(lines)


def _wrong(fault: Fault | None, key: list[int]) -> tuple[bool, bool]:
    """Whether the verdict on one pair is wrong, and whether the largest difference over forced tokens is, too."""
    rng = np.random.default_rng(key)
    seed, ties, seeded = int(rng.integers(2**32)), key[-1] % 2 == 0, key[-1] % 4 >= 2
    score: Scorer = _seeded_score(seed) if seeded else greedy_score
    left = _stream("left", seed, ties, seeded, rng, None)
    right = _stream("right", seed, ties, seeded, rng, fault)
    forced = _stream("forced", seed, ties, seeded, rng, fault, left.ids)
    bound = NOISE_BOUNDS["float32"]
    found = compare(left, right, bound, score).verdict in ("diverged", "drift")
    largest = max(step_difference(a, b) for a, b in zip(left.logprobs, forced.logprobs, strict=True))
    return found is (fault is None), (largest > bound) is (fault is None)


def _stream(
    name: str,
    seed: int,
    ties: bool,
    seeded: bool,
    rng: np.random.Generator,
    fault: Fault | None,
    forced: tuple[int, ...] = (),
) -> Stream:
    ids: list[int] = []
    rows: list[NDArray[np.float32]] = []
    for step in range(STEPS):
        logits = _logits(seed, ids, ties, _gumbel(seed, step) if seeded else np.zeros(VOCAB))
        logits = logits if fault is None else fault(logits, step, rng)
        logits = logits + ROUNDING * rng.standard_t(3, VOCAB)
        row = (logits - np.logaddexp.reduce(logits)).astype(np.float32)
        scores = _scores(row, seed, step) if seeded else row
        rows.append(row)
        ids.append(forced[step] if forced else int(scores.argmax()))
    return Stream(name, "prompt", tuple(ids), rows, " ".join(map(str, ids)), "length")


def _logits(seed: int, ids: list[int], ties: bool, noise: Row) -> Row:
    """What a model without rounding would say after ``ids``; with ``ties``, now and then two candidates are equal."""
    rng = np.random.default_rng([seed, crc32(str(ids).encode())])
    logits = rng.normal(0, 3, VOCAB)
    if ties and rng.random() < 0.1:
        first, second = np.argsort(logits / TEMPERATURE + noise if noise.any() else logits)[[-1, -2]]
        logits[second] = logits[first] + TEMPERATURE * (noise[first] - noise[second]) - ROUNDING * rng.random()
    return logits


def _gumbel(seed: int, step: int) -> Row:
    return np.random.default_rng([seed, step, 1]).gumbel(size=VOCAB)


def _scores(row: NDArray[np.float32], seed: int, step: int) -> NDArray[np.float32]:
    return ((row / TEMPERATURE + _gumbel(seed, step)) * TEMPERATURE).astype(np.float32)


def _seeded_score(seed: int) -> Scorer:
    return lambda stream, index: _scores(stream.logprobs[index], seed, index)


if __name__ == "__main__":
    sys.stdout.write(render(simulate()) + "\n")
