"""The engine against ``mlx-lm``'s loops, decode tok/s of all rows together, interleaved in one process.

All arms of a case decode the same prompts, greedy, EOS ignored; their tokens are compared. They begin with the same
keys and values, prefilled once, except in ``arrivals``, where prompts are prefilled, and timed, while others decode.
How arms take turns, and what the figures are: ``interleaved.py``.

    python -m benchmarks.engine_batch --rounds 5 [CASE ...]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache

from benchmarks.interleaved import Case, Event, main, sliced
from mlxcel_engine.engine import Engine, EngineConfig, SequenceId, SequenceSpec, StepBatch
from mlxcel_engine.engine.kv.detached import CopiedKv

if TYPE_CHECKING:
    from mlxcel_engine.engine.config import Storage
    from mlxcel_engine.engine.kv.store import DetachedKv

Prompts = list[tuple[int, ...]]
Ticks = Iterator[list[Event]]


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
        for cache, (keys, values) in zip(caches, self.layers, strict=True):
            cache.state = keys, values, keys.shape[2]
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
            mx.eval([cache.keys_and_values() for cache in caches])
        found.append(Prompt(ids, [cache.keys_and_values() for cache in caches]))
    return found


def cli(model: nn.Module, prompts: list[Prompt], tokens: int) -> Ticks:
    (prompt,) = prompts
    last = mx.array(prompt.ids[-1:])
    for token, _ in generate_step(last, model, max_tokens=tokens, prompt_cache=prompt.caches()):
        yield [(0, int(token))]


def batch_generator(model: nn.Module, prompts: list[Prompt], tokens: int) -> Ticks:
    generator = BatchGenerator(model, max_tokens=tokens, completion_batch_size=32, prefill_batch_size=8)
    uids = generator.insert(
        [list(prompt.ids[-1:]) for prompt in prompts],
        caches=[prompt.caches() for prompt in prompts],
        all_tokens=[list(prompt.ids[:-1]) for prompt in prompts],
    )
    rows = {uid: row for row, uid in enumerate(uids)}
    first: list[Event] = []
    while len(first) < len(rows):
        first += [(rows[response.uid], response.token) for response in generator.next()[1]]
    yield first
    while responses := generator.next_generated():
        yield [(rows[response.uid], response.token) for response in responses]
    generator.close()


def engine(model: nn.Module, prompts: list[Prompt], tokens: int, storage: Storage, shared: int = 0) -> Ticks:
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
    pending = engine.submit(batch)
    for _ in range(tokens):
        ahead = engine.submit(batch)  # after the last token, too: `mlx-lm`'s loops do
        yield [(row, output.token) for row, output in enumerate(engine.collect(pending).rows)]
        pending = ahead


def arrivals_batch_generator(model: nn.Module, prompts: Prompts, tokens: int, every: int, live: int) -> Ticks:
    generator = BatchGenerator(model, max_tokens=tokens, completion_batch_size=live, prefill_batch_size=live)
    waiting = deque(enumerate(prompts))
    rows: dict[int, int] = {}
    left: dict[int, int] = {}
    ticks = 0
    yield []
    while waiting or any(left.values()):
        running = sum(map(bool, left.values()))
        if waiting and running < live and (ticks % every == 0 or not running):
            row, prompt = waiting.popleft()
            (uid,) = generator.insert([list(prompt)])
            rows[uid], left[uid] = row, tokens
        responses = generator.next()[1]
        for response in responses:
            left[response.uid] -= 1
        yield [(rows[response.uid], response.token) for response in responses]
        ticks += 1
    generator.close()


def arrivals_engine(model: nn.Module, prompts: Prompts, tokens: int, every: int, live: int, storage: Storage) -> Ticks:
    """Step with lookahead while the rows stay the same, as our scheduler does.

    ``BatchGenerator`` always looks ahead, also for a row that has ended: one step of a row more for each of them.
    """
    engine = Engine(model, EngineConfig(storage=storage))
    waiting = deque(enumerate(prompts))
    rows: dict[SequenceId, int] = {}
    left: dict[SequenceId, int] = {}
    ticks = 0
    pending = None
    yield []

    def joins() -> bool:
        return bool(waiting) and len(left) < live and (ticks % every == 0 or not left)

    while waiting or left:
        if joins():
            row, prompt = waiting.popleft()
            sequence = engine.open(SequenceSpec(prompt, reserve=tokens))
            for piece in engine.plan(sequence).pieces:
                engine.prefill(sequence, piece)
            rows[sequence], left[sequence] = row, tokens
        now = pending or engine.submit(StepBatch(tuple(left)))
        ticks += 1
        left = {sequence: more - 1 for sequence, more in left.items() if more > 1}
        steady = len(left) == len(now.rows) and not joins()
        pending = engine.submit(StepBatch(tuple(left))) if steady else None
        yield [(rows[output.id], output.token) for output in engine.collect(now).rows]
        for sequence in set(now.rows) - set(left):
            engine.close(sequence)


def cases(model: nn.Module) -> dict[str, Callable[[], Case]]:
    def single(ctx: int, tokens: int) -> Case:
        prompts = prefilled(model, random_ids([ctx]))
        return Case(
            "cli",
            {
                "cli": lambda: sliced(cli(model, prompts, tokens)),
                "dense": lambda: sliced(engine(model, prompts, tokens, "dense")),
                "paged": lambda: sliced(engine(model, prompts, tokens, "paged")),
            },
        )

    def batch(lengths: Sequence[int], tokens: int, shared: int = 0) -> Case:
        prompts = prefilled(model, random_ids(lengths, shared))
        return Case(
            "mlx-batch",
            {
                "mlx-batch": lambda: sliced(batch_generator(model, prompts, tokens)),
                "dense": lambda: sliced(engine(model, prompts, tokens, "dense")),
                "paged": lambda: sliced(engine(model, prompts, tokens, "paged", shared)),
            },
        )

    def arrivals() -> Case:
        prompts = random_ids([int(n) for n in np.random.default_rng(1).integers(32, 257, 16)])
        return Case(
            "mlx-batch",
            {
                "mlx-batch": lambda: sliced(arrivals_batch_generator(model, prompts, 32, 4, 8)),
                "dense": lambda: sliced(arrivals_engine(model, prompts, 32, 4, 8, "dense")),
                "paged": lambda: sliced(arrivals_engine(model, prompts, 32, 4, 8, "paged")),
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


if __name__ == "__main__":
    main(__doc__, cases)
