"""The scheduler against the engine under it and against ``mlx-lm``'s ``BatchGenerator``, interleaved in one process.

``one-*``: decode tok/s of one request over the engine driven directly (1 is as fast); requests of 16 tokens take turns,
each after the first adopts the prompt's keys and values. ``cache-*``: prompts a second to the first token, a prompt
whose first 1024 tokens are in the prompt cache over one of which nothing is (12 is twelve times shorter TTFT).
``mixed``: 16 requests of 64 to 1024 prompt tokens, at most 8 at a time, prompt tokens not counted, from the first
submission to the last token, over ``BatchGenerator``. ``stall``: the longest gap between two tokens of a live stream
while a prompt of 1024 is prefilled, over the longest piece of that prompt plus one decode step.

How arms take turns, and what the figures are: ``interleaved.py``. Greedy, EOS ignored; tokens are compared.

    python -m benchmarks.scheduler --rounds 5 [CASE ...]
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from mlx_lm.generate import BatchGenerator

from benchmarks.engine_batch import Prompts, random_ids
from benchmarks.interleaved import Case, Slice, main
from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StepBatch, StopRules
from mlxcel_engine.scheduler import BatchScheduler, Request, SchedulerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import mlx.nn as nn

    from mlxcel_engine.engine.config import Storage

SHARED, TAIL, PIECE, TOKENS = 1024, 32, 256, 16
REQUESTS = 5  # of TOKENS tokens an arm and round


def rules(tokens: int) -> StopRules:
    return StopRules(frozenset(), tokens)


def engine(model: nn.Module, prompt: tuple[int, ...], storage: Storage, requests: int) -> Iterator[Slice]:
    """Step with lookahead from the second token on; prefill once, later requests adopt its keys and values."""
    engine = Engine(model, EngineConfig(storage))
    spec = SequenceSpec(prompt, reserve=TOKENS)
    prefix = None
    for _ in range(requests):
        row = engine.open(spec, prefix)
        for piece in engine.plan(row).pieces:
            engine.prefill(row, piece)
        prefix = prefix or engine.snapshot(row, len(prompt) - 1)
        batch = StepBatch((row,))
        pending = engine.submit(batch)
        times, tokens = [], []
        for step in range(TOKENS):
            ahead = engine.submit(batch) if 0 < step < TOKENS - 1 else None
            tokens.append(engine.collect(pending).rows[0].token)
            times.append(time.perf_counter())
            if step < TOKENS - 1:
                pending = ahead or engine.submit(batch)
        engine.close(row)
        yield decode_slice(times, tokens)


def scheduler(model: nn.Module, prompt: tuple[int, ...], storage: Storage, requests: int) -> Iterator[Slice]:
    config = SchedulerConfig(prompt_cache_bytes=2**30)
    with BatchScheduler(Engine(model, EngineConfig(storage)), config) as running:
        for _ in range(requests):
            result = running.submit(Request(prompt, rules(TOKENS))).result()
            yield decode_slice(result.timings.tokens, result.tokens)


def decode_slice(times: Sequence[float], tokens: Sequence[int]) -> Slice:
    return Slice(times[-1] - times[0], len(tokens) - 1, [(0, token) for token in tokens])


def first_token(model: nn.Module, prompts: Prompts, storage: Storage, primed: bool) -> Iterator[Slice]:
    """The first token of the second prompt; ``primed`` by the first one, which begins alike."""
    config = SchedulerConfig(prompt_cache_bytes=2**30 if primed else 0)
    with BatchScheduler(Engine(model, EngineConfig(storage)), config) as running:
        first, second = (Request(prompt, rules(8), boundary=SHARED) for prompt in prompts)
        if primed:
            running.submit(first).result()
        result = running.submit(second).result()
    if result.adopted != (SHARED if primed else 0):
        raise RuntimeError(f"{result.adopted} tokens adopted")
    yield Slice(result.timings.ttft or 0.0, 1, [(0, token) for token in result.tokens])


def mixed_batch_generator(model: nn.Module, prompts: Prompts, tokens: int, live: int) -> Iterator[Slice]:
    generator = BatchGenerator(model, max_tokens=tokens, completion_batch_size=live, prefill_batch_size=live)
    started = time.perf_counter()
    uids = generator.insert([list(prompt) for prompt in prompts])
    ids: dict[int, list[int]] = {uid: [] for uid in uids}
    while any(len(found) < tokens for found in ids.values()):
        for response in generator.next()[1]:
            ids[response.uid].append(response.token)
    elapsed = time.perf_counter() - started
    generator.close()
    yield batch_slice(elapsed, list(ids.values()))


def mixed_scheduler(model: nn.Module, prompts: Prompts, tokens: int, live: int, storage: Storage) -> Iterator[Slice]:
    with BatchScheduler(Engine(model, EngineConfig(storage)), SchedulerConfig(max_batch=live)) as running:
        started = time.perf_counter()
        handles = [running.submit(Request(prompt, rules(tokens))) for prompt in prompts]
        results = [handle.result() for handle in handles]
        elapsed = time.perf_counter() - started
    yield batch_slice(elapsed, [result.tokens for result in results])


def batch_slice(seconds: float, rows: Sequence[Sequence[int]]) -> Slice:
    return Slice(seconds, sum(map(len, rows)), [(row, token) for row, ids in enumerate(rows) for token in ids])


def piece_and_step(model: nn.Module, prompts: Prompts) -> Iterator[Slice]:
    """Seconds of the longest piece of the second prompt, plus one decode step of the first."""
    running = Engine(model)
    live, long = (running.open(SequenceSpec(prompt, chunk=PIECE)) for prompt in prompts)
    for piece in running.plan(live).pieces:
        running.prefill(live, piece)
    steps = [timed(lambda: running.step(StepBatch((live,)))) for _ in range(9)]
    pieces = [timed(partial(running.prefill, long, piece)) for piece in running.plan(long).pieces]
    yield Slice(1, max(pieces) + float(np.median(steps)))


def longest_stall(model: nn.Module, prompts: Prompts, storage: Storage) -> Iterator[Slice]:
    """Seconds of the longest gap between two tokens of the first prompt's stream until the second's first token."""
    with BatchScheduler(Engine(model, EngineConfig(storage)), SchedulerConfig(chunk=PIECE)) as running:
        live = running.submit(Request(prompts[0], rules(2000)))
        stream = iter(live)
        for _ in range(4):
            next(stream)
        from_here = time.perf_counter()
        first = running.submit(Request(prompts[1], rules(1))).result().timings.tokens[0]
        while next(stream).at < first:
            pass
        live.cancel()
        times = [at for at in live.wait().timings.tokens if at >= from_here]
    until = next(index for index, at in enumerate(times) if at >= first)
    yield Slice(1, max(after - before for before, after in pairwise([from_here, *times[: until + 1]])))


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def cases(model: nn.Module) -> dict[str, Callable[[], Case]]:
    def one(ctx: int, storage: Storage) -> Case:
        (prompt,) = random_ids([ctx])
        return Case(
            "engine",
            {
                "engine": lambda: engine(model, prompt, storage, REQUESTS),
                "scheduler": lambda: scheduler(model, prompt, storage, REQUESTS),
            },
        )

    def cache(storage: Storage) -> Case:
        prompts = random_ids([SHARED + TAIL] * 2, SHARED)
        return Case(
            "miss",
            {
                "miss": lambda: first_token(model, prompts, storage, primed=False),
                "hit": lambda: first_token(model, prompts, storage, primed=True),
            },
            "prompts/s",
        )

    def mixed() -> Case:
        prompts = random_ids([int(n) for n in np.random.default_rng(2).integers(64, 1025, 16)])
        return Case(
            "mlx-batch",
            {
                "mlx-batch": lambda: mixed_batch_generator(model, prompts, 32, 8),
                "dense": lambda: mixed_scheduler(model, prompts, 32, 8, "dense"),
                "paged": lambda: mixed_scheduler(model, prompts, 32, 8, "paged"),
            },
        )

    def stall() -> Case:
        prompts = random_ids([64, 1024])
        return Case(
            "piece+step",
            {
                "piece+step": lambda: piece_and_step(model, prompts),
                "dense": lambda: longest_stall(model, prompts, "dense"),
                "paged": lambda: longest_stall(model, prompts, "paged"),
            },
            "s",
        )

    return {
        "one-256-dense": lambda: one(256, "dense"),
        "one-256-paged": lambda: one(256, "paged"),
        "one-2048-dense": lambda: one(2048, "dense"),
        "one-2048-paged": lambda: one(2048, "paged"),
        "cache-dense": lambda: cache("dense"),
        "cache-paged": lambda: cache("paged"),
        "mixed": mixed,
        "stall": stall,
    }


if __name__ == "__main__":
    main(__doc__, cases)
