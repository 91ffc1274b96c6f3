"""The engine against ``mlx-lm``'s loops, decode tok/s of all rows together, interleaved in one process.

Every case runs its arms in turn, round by round, in an order that rotates; ``null`` is the reference run again. All
arms of a case decode the same prompts, greedy, EOS ignored; their tokens are compared. They begin with the same keys
and values, prefilled once, except in ``arrivals``, where prompts are prefilled, and timed, while others decode.
Intervals are percentile bootstraps of the median.

    python -m benchmarks.engine_batch --rounds 5 [CASE ...]
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache

from mlxcel_engine.device import select_device
from mlxcel_engine.engine import Engine, EngineConfig, SequenceId, SequenceSpec, StepBatch
from mlxcel_engine.engine.kv.detached import CopiedKv
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import load
from mlxcel_engine.loader.policy import resolve_policy
from mlxcel_engine.preload import PRELOAD

if TYPE_CHECKING:
    from mlxcel_engine.engine.config import Storage
    from mlxcel_engine.engine.kv.store import DetachedKv

Prompts = list[tuple[int, ...]]
Result = tuple[float, list[list[int]]]
Arm = Callable[[], Result]


@dataclass(frozen=True)
class Prompt:
    """A prompt and the keys and values of all but its last token, ``[1, Hkv, T, D]`` per layer, in ``mlx-lm``'s order.

    Every arm begins with them, so that no arm's time or rest of a round is spent on prefill.
    """

    ids: tuple[int, ...]
    layers: list[tuple[mx.array, mx.array]]

    def caches(self) -> list[KVCache]:
        """``mlx-lm`` caches that hold them; their arrays are copied as soon as one token is added."""
        caches = [KVCache() for _ in self.layers]
        for cache, pair in zip(caches, self.layers, strict=True):
            cache.state = pair
        return caches


def random_ids(lengths: Sequence[int], shared: int = 0) -> Prompts:
    draw = np.random.default_rng(0)
    prefix = [int(i) for i in draw.integers(100, 40_000, shared)]
    return [tuple(prefix + [int(i) for i in draw.integers(100, 40_000, n - shared)]) for n in lengths]


def prefilled(model: nn.Module, prompts: Prompts) -> list[Prompt]:
    found = []
    for ids in prompts:
        caches = make_prompt_cache(model)
        for start in range(0, len(ids) - 1, 512):
            model(mx.array([ids[start : min(start + 512, len(ids) - 1)]]), cache=caches)
            mx.eval([cache.state for cache in caches])
        found.append(Prompt(ids, [cache.state for cache in caches]))
    return found


def cli(model: nn.Module, prompts: list[Prompt], tokens: int) -> Result:
    (prompt,) = prompts
    times, ids = [], []
    last = mx.array(prompt.ids[-1:])
    for token, _ in generate_step(last, model, max_tokens=tokens, prompt_cache=prompt.caches()):
        times.append(time.perf_counter())
        ids.append(int(token))
    return (tokens - 1) / (times[-1] - times[0]), [ids]


def batch_generator(model: nn.Module, prompts: list[Prompt], tokens: int) -> Result:
    generator = BatchGenerator(model, max_tokens=tokens, completion_batch_size=32, prefill_batch_size=8)
    uids = generator.insert(
        [list(prompt.ids[-1:]) for prompt in prompts],
        caches=[prompt.caches() for prompt in prompts],
        all_tokens=[list(prompt.ids[:-1]) for prompt in prompts],
    )
    ids: dict[int, list[int]] = {uid: [] for uid in uids}
    while not all(ids.values()):
        for response in generator.next()[1]:
            ids[response.uid].append(response.token)
    done = sum(map(len, ids.values()))
    started = time.perf_counter()
    while responses := generator.next_generated():
        for response in responses:
            ids[response.uid].append(response.token)
    elapsed = time.perf_counter() - started
    generator.close()
    return (sum(map(len, ids.values())) - done) / elapsed, list(ids.values())


def engine(model: nn.Module, prompts: list[Prompt], tokens: int, storage: Storage, shared: int = 0) -> Result:
    engine = Engine(model, EngineConfig(storage=storage))
    rows: list[SequenceId] = []
    prefix: DetachedKv | None = None
    for prompt in prompts:
        spec = SequenceSpec(prompt.ids, reserve=tokens)
        held = CopiedKv.of(list(prompt.layers), len(prompt.ids) - 1)
        row = engine.open(spec, prefix or held)
        held.release()
        for piece in engine.plan(row).pieces:
            engine.prefill(row, piece)
        if shared and prefix is None:
            prefix = engine.snapshot(row, shared)
        rows.append(row)
    batch = StepBatch(tuple(rows))
    ids: list[list[int]] = [[] for _ in prompts]
    pending = engine.submit(batch)
    started = 0.0
    for step in range(tokens):
        ahead = engine.submit(batch) if step + 1 < tokens else pending
        for found, output in zip(ids, engine.collect(pending).rows, strict=True):
            found.append(output.token)
        started = started or time.perf_counter()
        pending = ahead
    return len(prompts) * (tokens - 1) / (time.perf_counter() - started), ids


def arrivals_batch_generator(model: nn.Module, prompts: Prompts, tokens: int, every: int, live: int) -> Result:
    generator = BatchGenerator(model, max_tokens=tokens, completion_batch_size=live, prefill_batch_size=live)
    waiting = deque(prompts)
    ids: dict[int, list[int]] = {}
    started, ticks = time.perf_counter(), 0
    while waiting or any(len(found) < tokens for found in ids.values()):
        running = sum(len(found) < tokens for found in ids.values())
        if waiting and running < live and (ticks % every == 0 or not running):
            (uid,) = generator.insert([list(waiting.popleft())])
            ids[uid] = []
        for response in generator.next()[1]:
            ids[response.uid].append(response.token)
        ticks += 1
    elapsed = time.perf_counter() - started
    generator.close()
    return len(prompts) * tokens / elapsed, list(ids.values())


def arrivals_engine(model: nn.Module, prompts: Prompts, tokens: int, every: int, live: int, storage: Storage) -> Result:
    engine = Engine(model, EngineConfig(storage=storage))
    waiting = deque(prompts)
    ids: dict[SequenceId, list[int]] = {}
    running: list[SequenceId] = []
    started, ticks = time.perf_counter(), 0
    while waiting or running:
        if waiting and len(running) < live and (ticks % every == 0 or not running):
            row = engine.open(SequenceSpec(waiting.popleft(), reserve=tokens))
            for piece in engine.plan(row).pieces:
                engine.prefill(row, piece)
            running.append(row)
            ids[row] = []
        for output in engine.step(StepBatch(tuple(running))).rows:
            ids[output.id].append(output.token)
            if len(ids[output.id]) == tokens:
                engine.close(output.id)
                running.remove(output.id)
        ticks += 1
    return len(prompts) * tokens / (time.perf_counter() - started), list(ids.values())


@dataclass(frozen=True)
class Case:
    """Arms over the same prompts, which of them the others are divided by, and what an arm measures."""

    reference: str
    arms: dict[str, Arm]
    unit: str = "tok/s"


def cases(model: nn.Module) -> dict[str, Callable[[], Case]]:
    def single(ctx: int, tokens: int) -> Case:
        prompts = prefilled(model, random_ids([ctx]))
        return Case(
            "cli",
            {
                "cli": lambda: cli(model, prompts, tokens),
                "dense": lambda: engine(model, prompts, tokens, "dense"),
                "paged": lambda: engine(model, prompts, tokens, "paged"),
            },
        )

    def batch(lengths: Sequence[int], tokens: int, shared: int = 0) -> Case:
        prompts = prefilled(model, random_ids(lengths, shared))
        return Case(
            "mlx-batch",
            {
                "mlx-batch": lambda: batch_generator(model, prompts, tokens),
                "dense": lambda: engine(model, prompts, tokens, "dense"),
                "paged": lambda: engine(model, prompts, tokens, "paged", shared),
            },
        )

    def arrivals() -> Case:
        prompts = random_ids([int(n) for n in np.random.default_rng(1).integers(32, 257, 16)])
        return Case(
            "mlx-batch",
            {
                "mlx-batch": lambda: arrivals_batch_generator(model, prompts, 32, 4, 8),
                "dense": lambda: arrivals_engine(model, prompts, 32, 4, 8, "dense"),
                "paged": lambda: arrivals_engine(model, prompts, 32, 4, 8, "paged"),
            },
        )

    return {
        "one-256": lambda: single(256, 64),
        "one-2048": lambda: single(2048, 48),
        "four-equal": lambda: batch([256] * 4, 32),
        "eight-ragged": lambda: batch([64] * 7 + [1024], 24),
        "eight-1024": lambda: batch([1024] * 8, 24),
        "eight-shared": lambda: batch([1040] * 8, 24, shared=1024),
        "arrivals": arrivals,
    }


def interval(values: list[float]) -> tuple[float, float]:
    draws = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def run_case(name: str, case: Case, rounds: int) -> None:
    arms = [*case.arms.items(), ("null", case.arms[case.reference])]
    tokens: dict[str, list[list[int]]] = {}
    speeds: dict[str, list[float]] = {arm: [] for arm, _ in arms}
    for index in range(rounds):
        turn = index % len(arms)
        for arm, run in arms[turn:] + arms[:turn]:
            speed, tokens[arm] = run()
            speeds[arm].append(speed)
    reference = speeds[case.reference]
    print(f"{name}: {case.reference} {np.median(reference):.3g} {case.unit}", flush=True)
    for arm, values in speeds.items():
        if arm != case.reference:
            ratios = [a / b for a, b in zip(values, reference, strict=True)]
            low, high = interval(ratios)
            same = sum(a == b for a, b in zip(tokens[arm], tokens[case.reference], strict=True))
            shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
            spread = f"median {np.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
            print(f"  {arm:6} {spread}  ({shown})  same tokens in {same} of {len(tokens[arm])} rows", flush=True)


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
    for name in options.cases or known:
        run_case(name, known[name](), options.rounds)


if __name__ == "__main__":
    main(__doc__, cases)
