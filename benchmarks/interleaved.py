"""Arms that are measured in turn, a slice of each at a time, so that a machine that slows down slows all of them.

A round makes every arm anew and runs all of them to their ends, slice by slice, in an order that is drawn anew for
every pass (seeded); ``null`` is the reference arm once more. A slice is a few steps of a decode loop, or one request.
What an arm achieved in a round is the sum of its slices. Ratios are of one round; intervals are percentile bootstraps
of their median.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generation_stream

from mlxcel_engine.device import select_device
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import load
from mlxcel_engine.loader.policy import resolve_policy
from mlxcel_engine.preload import PRELOAD

if TYPE_CHECKING:
    import mlx.nn as nn

Event = tuple[int, int]  # a row of the arm and its next token


@dataclass(frozen=True)
class Slice:
    """What a part of an arm's run took in seconds, what it achieved in the unit of the case, and its tokens.

    An arm's figure is ``amount`` over ``seconds``, both summed.
    """

    seconds: float
    amount: float
    events: list[Event] = field(default_factory=list)


Arm = Callable[[], Iterator[Slice]]


@dataclass(frozen=True)
class Case:
    """Arms over the same prompts, which of them the others are divided by, and the unit of their figures."""

    reference: str
    arms: dict[str, Arm]
    unit: str = "tok/s"


def wait() -> None:
    """Wait for what is queued, of every arm: ``mlx-lm``'s loops compute on a stream of their own."""
    mx.synchronize()
    mx.synchronize(generation_stream)


def sliced(ticks: Iterator[list[Event]], steps: int = 4) -> Iterator[Slice]:
    """Time a decode loop in slices of ``steps`` ticks, after a first one that makes it ready and is not timed."""
    first = next(ticks)
    wait()
    yield Slice(0, 0, first)
    while True:
        started = time.perf_counter()
        found = list(islice(ticks, steps))
        wait()
        seconds = time.perf_counter() - started
        if not found:
            return
        events = [event for tick in found for event in tick]
        yield Slice(seconds, len(events), events)


def run_round(arms: list[tuple[str, Arm]], order: np.random.Generator) -> dict[str, Slice]:
    """Run every arm to its end, in turn; the sum of its slices."""
    running = {name: arm() for name, arm in arms}
    found: dict[str, list[Slice]] = {name: [] for name in running}
    while running:
        for name in order.permutation(list(running)):
            part = next(running[name], None)
            if part is None:
                del running[name]
            else:
                found[name].append(part)
    return {
        name: Slice(
            sum(part.seconds for part in parts),
            sum(part.amount for part in parts),
            [event for part in parts for event in part.events],
        )
        for name, parts in found.items()
    }


def rows_of(events: list[Event]) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, token in events:
        rows.setdefault(row, []).append(token)
    return rows


def interval(values: list[float]) -> tuple[float, float]:
    draws = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def run_case(name: str, case: Case, rounds: int) -> None:
    arms = [*case.arms.items(), ("null", case.arms[case.reference])]
    order = np.random.default_rng(0)
    found = [run_round(arms, order) for _ in range(rounds)]
    figures = {arm: [one[arm].amount / one[arm].seconds for one in found] for arm, _ in arms}
    reference = figures[case.reference]
    print(f"{name}: {case.reference} {np.median(reference):.3g} {case.unit}", flush=True)
    expected = [rows_of(one[case.reference].events) for one in found]
    for arm, values in figures.items():
        if arm == case.reference:
            continue
        ratios = [a / b for a, b in zip(values, reference, strict=True)]
        low, high = interval(ratios)
        shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
        tokens = [rows_of(one[arm].events) for one in found]
        same = [a[row] == ids for a, b in zip(tokens, expected, strict=True) for row, ids in b.items()]
        print(f"  {arm:9} median {np.median(ratios):.3f} [{low:.3f}, {high:.3f}]  ({shown})", end="", flush=True)
        print(f"  same tokens in {sum(same)} of {len(same)} rows" if same else "", flush=True)


def main(description: str, cases: Callable[[nn.Module], dict[str, Callable[[], Case]]]) -> None:
    """Run the cases that the command line names, or all, on the checkpoint that it names."""
    if PRELOAD.mlx_was_first:
        raise SystemExit("MLX was imported before mlxcel_engine, so the BLAS settings had no effect")
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    policy = resolve_policy(select_device("auto"))
    model = load(options.model, policy, CheckpointCache(default_cache_root(os.environ)), print).model
    known = cases(model)
    if unknown := set(options.cases) - set(known):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in options.cases or known:
        run_case(name, known[name](), options.rounds)
