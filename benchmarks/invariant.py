"""The price of the invariant mode: each shape against the normal mode, interleaved in one process.

``one-*`` and ``full-W`` are decode tok/s of one row, and of as many rows as the shape is wide; EOS is ignored, the keys
and values of the prompts were prefilled before. ``first-*`` are requests a second from opening a sequence to its first
token, so a ratio of 0.87 is a TTFT of 1.15 times the normal mode's. How arms take turns, and what the figures are:
``interleaved.py``.

    python -m benchmarks.invariant --rounds 5 [CASE ...]
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.engine_batch import Prompt, prefilled, random_ids
from benchmarks.interleaved import Arm, Case, Slice, main, sliced
from mlxcel_engine.engine import Engine, EngineConfig, FixedShapes, SequenceId, SequenceSpec, StepBatch
from mlxcel_engine.engine.kv.detached import CopiedKv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import mlx.nn as nn

    from benchmarks.engine_batch import Ticks

WIDTHS = (2, 4, 8)
CHUNKS = (32, 64, 128, 256, 512)
CHUNK = 64  # of the decode cases, where it is of no consequence
NORMAL = EngineConfig(invariant=False)


def opened(engine: Engine, ids: tuple[int, ...], tokens: int, prefix: CopiedKv | None = None) -> SequenceId:
    row = engine.open(SequenceSpec(ids, reserve=tokens), prefix)
    for piece in engine.plan(row).pieces:
        engine.prefill(row, piece)
    return row


def decode(model: nn.Module, prompts: list[Prompt], tokens: int, config: EngineConfig) -> Ticks:
    engine = Engine(model, config)
    rows = []
    for prompt in prompts:
        held = CopiedKv.of(list(prompt.layers), len(prompt.ids) - 1)
        rows.append(opened(engine, prompt.ids, tokens, held))
        held.release()
    engine.step(StepBatch(tuple(rows)))  # in the invariant mode, without a forward
    pending = engine.submit(StepBatch(tuple(rows)))
    for step in range(tokens):
        ahead = engine.submit(StepBatch(tuple(rows))) if step + 1 < tokens else pending
        yield [(row, output.token) for row, output in enumerate(engine.collect(pending).rows)]
        pending = ahead


def first(model: nn.Module, ids: tuple[int, ...], config: EngineConfig) -> Iterator[Slice]:
    """One request."""
    engine = Engine(model, config)
    started = time.perf_counter()
    row = opened(engine, ids, 1)
    token = engine.step(StepBatch((row,))).rows[0].token
    yield Slice(time.perf_counter() - started, 1, [(0, token)])


def cases(model: nn.Module) -> dict[str, Callable[[], Case]]:
    def decoding(lengths: Sequence[int], tokens: int, widths: Sequence[int]) -> Case:
        prompts = prefilled(model, random_ids([length + 1 for length in lengths]))

        def arm(config: EngineConfig) -> Arm:
            return lambda: sliced(decode(model, prompts, tokens, config))

        shapes = {f"width {width}": FixedShapes(width, CHUNK) for width in widths}
        arms = {name: arm(EngineConfig(invariant=shape)) for name, shape in shapes.items()}
        return Case("normal", {"normal": arm(NORMAL), **arms})

    def opening(ctx: int) -> Case:
        (ids,) = random_ids([ctx])

        def arm(config: EngineConfig) -> Arm:
            return lambda: first(model, ids, config)

        shapes = {f"chunk {chunk}": FixedShapes(4, chunk) for chunk in CHUNKS}
        arms = {name: arm(EngineConfig(invariant=shape)) for name, shape in shapes.items()}
        return Case("normal", {"normal": arm(NORMAL), **arms}, "1/s")

    full: dict[str, Callable[[], Case]] = {
        f"full-{width}": partial(decoding, [256] * width, 32, [width]) for width in WIDTHS
    }
    return {
        "one-256": lambda: decoding([256], 48, WIDTHS),
        "one-2048": lambda: decoding([2048], 32, WIDTHS),
        **full,
        "first-32": lambda: opening(32),
        "first-2048": lambda: opening(2048),
    }


if __name__ == "__main__":
    main(__doc__, cases)
