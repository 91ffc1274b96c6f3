"""Decode speed of ``engine`` over ``cli`` at B=1, interleaved in one process, with a null pair in the same run.

The arms of a round are ``cli``, ``engine`` and ``cli`` again (the null arm); their order rotates by one place a
round. Decode tok/s = (tokens - 1) / (time of the last token - time of the first). Each arm decodes the same
prompt of exactly ``--ctx`` tokens and ``--tokens`` new ones, ignoring EOS. The null pair shows what the machine's
noise does to a ratio; the interval is a percentile bootstrap of the median over the rounds.

    python -m benchmarks.engine_ratio --ctx 256 --tokens 64 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace

import mlxcel_engine  # noqa: F401 - applies the BLAS settings before MLX is imported

import mlx.core as mx  # isort: skip
import numpy as np

from mlxcel_engine.device import select_device
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import LoadedModel, load
from mlxcel_engine.loader.policy import resolve_policy
from mlxcel_engine.paths import DecodePath, PathRequest
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.paths.mlx_lm_cli import MlxLmCli
from mlxcel_engine.prompts import Prompt


def decode_speed(path: DecodePath, loaded: LoadedModel, request: PathRequest) -> float:
    times = []
    for step in path.run(loaded, request).steps:
        times.append(time.perf_counter())
        del step
    if len(times) != request.max_tokens:
        raise SystemExit(f"{path.name} ended after {len(times)} of {request.max_tokens} tokens")
    mx.synchronize()
    return (len(times) - 1) / (times[-1] - times[0])


def median_interval(ratios: list[float], seed: int = 0) -> tuple[float, float]:
    draws = np.random.default_rng(seed).choice(ratios, size=(10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    policy = resolve_policy(select_device("auto"))
    loaded = load(options.model, policy, CheckpointCache(default_cache_root(os.environ)), print)
    loaded = replace(loaded, record=loaded.record.model_copy(update={"eos_ids": []}))
    loaded.tokenizer.eos_token_ids = []
    ids = tuple(int(i) for i in np.random.default_rng(0).integers(100, loaded.record.vocab_size, options.ctx))
    request = PathRequest(Prompt("synthetic", "", ids, chat=False), options.tokens, 2048)
    arms: list[tuple[str, DecodePath]] = [("cli", MlxLmCli()), ("engine", EnginePath()), ("cli-null", MlxLmCli())]

    for _, path in arms[:2]:
        decode_speed(path, loaded, request)
    ratios: dict[str, list[float]] = {"engine": [], "cli-null": []}
    for index in range(options.rounds):
        turn = index % len(arms)
        speeds = {name: decode_speed(path, loaded, request) for name, path in arms[turn:] + arms[:turn]}
        for name, values in ratios.items():
            values.append(speeds[name] / speeds["cli"])
        print("  ".join(f"{name} {speed:.2f} tok/s" for name, speed in sorted(speeds.items())), flush=True)
    for name, values in ratios.items():
        low, high = median_interval(values)
        shown = " ".join(f"{value:.3f}" for value in values)
        print(f"{name}/cli: {shown}; median {np.median(values):.3f}, 95 % interval {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
