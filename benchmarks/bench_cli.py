"""Is the ``cli`` row of ``bench`` what a bare ``generate_step`` loop measures?

The arms of a round are ``bench`` (one measurement as the command makes it, warm-up and all), ``bare``
(``generate_step`` over the same prompt, stamped as each token comes) and ``null`` (``bare`` again); their order rotates
by one place a round. Decode tok/s = (tokens - 1) / (time of the last token - time of the first), TTFT from the call.
The last lines give the medians, and bench over bare beside null over bare, which shows what the machine's noise does to
a ratio.

    python -m benchmarks.bench_cli --ctx 256 --tokens 64 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step, generation_stream

from mlxcel_engine.bench.measure import measure
from mlxcel_engine.bench.plan import BenchOptions, draw_prompts, plan_contexts, resolve_warmup
from mlxcel_engine.bench.real import make_rig
from mlxcel_engine.bench.summary import summarise
from mlxcel_engine.device import select_device
from mlxcel_engine.environment import collect_environment
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import load
from mlxcel_engine.loader.policy import resolve_policy

if TYPE_CHECKING:
    import mlx.nn as nn

    from mlxcel_engine.bench.plan import Context
    from mlxcel_engine.bench.rig import Rig

Speeds = tuple[float, float]  # TTFT in ms, decode in tokens a second


class Silent:
    """An observer that tells nobody."""

    def phase(self, text: str, total: int | None = None) -> None:
        """See :meth:`Observer.phase`."""

    def token(self, count: int) -> None:
        """See :meth:`Observer.token`."""


def bench(rig: Rig, context: Context, options: BenchOptions) -> Speeds:
    (cli,) = rig.loops
    figures = summarise(measure(rig, cli, context, options, Silent()).streams, context.longest)
    assert figures.ttft_ms is not None
    assert figures.decode_tok_s is not None
    return figures.ttft_ms, figures.decode_tok_s


def bare(model: nn.Module, prompt: tuple[int, ...], options: BenchOptions) -> Speeds:
    mx.synchronize(generation_stream)
    mx.clear_cache()
    times = []
    start = time.perf_counter()
    steps = generate_step(
        mx.array(prompt), model, max_tokens=options.max_tokens, prefill_step_size=options.prefill_chunk
    )
    for _ in steps:
        times.append(time.perf_counter())
    return 1e3 * (times[0] - start), (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()

    device = select_device("auto")
    loaded = load(asked.model, resolve_policy(device), CheckpointCache(default_cache_root(os.environ)), print)
    rig = make_rig(collect_environment(loaded.record.dtype, device, os.environ), loaded, device, ["cli"])
    options = BenchOptions((asked.ctx,), asked.tokens, resolve_warmup(device, "auto"))
    (context,) = plan_contexts(options, rig.model, print)
    (prompt,) = draw_prompts(rig.model, context.lengths, options.seed, 1)
    arms = {
        "bench": lambda: bench(rig, context, options),
        "bare": lambda: bare(loaded.model, prompt, options),
        "null": lambda: bare(loaded.model, prompt, options),
    }
    bare(loaded.model, prompt, options)
    seen: dict[str, list[Speeds]] = {arm: [] for arm in arms}
    for index in range(asked.rounds):
        names = list(arms)
        for arm in names[index % 3 :] + names[: index % 3]:
            seen[arm].append(arms[arm]())
        print("  ".join(f"{arm} {seen[arm][-1][1]:.2f} tok/s" for arm in arms), flush=True)
    for place, what in ((0, "TTFT ms"), (1, "decode tok/s")):
        medians = {arm: float(np.median([speeds[place] for speeds in seen[arm]])) for arm in arms}
        ratios = {arm: medians[arm] / medians["bare"] for arm in ("bench", "null")}
        shown = ", ".join(f"{arm} {median:.2f}" for arm, median in medians.items())
        print(
            f"{what}: medians of {asked.rounds}: {shown}; bench/bare {ratios['bench']:.3f}, null {ratios['null']:.3f}"
        )


if __name__ == "__main__":
    main()
