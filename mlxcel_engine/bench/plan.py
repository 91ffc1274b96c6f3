"""What is to be measured: options checked against the model, contexts capped, prompts drawn. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_engine.bench.loops import Storage
    from mlxcel_engine.records.bench import WarmupName
    from mlxcel_engine.records.model import ModelRecord


@dataclass(frozen=True)
class BenchOptions:
    """How to measure; ``ctx`` and ``max_tokens`` in tokens a stream."""

    ctx: tuple[int, ...]
    max_tokens: int
    warmup: WarmupName
    warmup_tokens: int
    prefill_chunk: int
    storage: Storage = "auto"
    batch: int = 1
    ragged: bool = False
    ignore_eos: bool = True
    seed: int = 0
    label: str | None = None

    def __post_init__(self) -> None:
        if self.ragged and self.batch < 2:
            raise UsageError("--ragged needs streams to differ in length; give --batch 2 or more")


def resolve_warmup(device: Literal["cpu", "gpu"], warmup: str) -> WarmupName:
    """Resolve ``auto``: the whole prompt on a GPU, where it is cheap, its first chunk on a CPU.

    Raises:
        UsageError: an unknown name.

    """
    match warmup:
        case "auto":
            return "full" if device == "gpu" else "chunk"
        case "full" | "chunk" | "none":
            return warmup
        case _:
            raise UsageError(f"--warmup {warmup}: give auto, full, chunk or none")


def check_storage(storage: str) -> Storage:
    """Return ``storage``.

    Raises:
        UsageError: an unknown name.

    """
    match storage:
        case "auto" | "dense" | "paged":
            return storage
        case _:
            raise UsageError(f"--decode-storage {storage}: give auto, dense or paged")


@dataclass(frozen=True)
class Context:
    """A context that was ``asked`` for, and the prompt ``lengths`` of its streams, in tokens."""

    asked: int
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.lengths)


def plan_contexts(options: BenchOptions, model: ModelRecord, warn: Callable[[str], None]) -> list[Context]:
    """Cap each context so that prompt and new tokens fit the model, each once, and say so.

    Raises:
        UsageError: not even one prompt token fits.

    """
    contexts: dict[int, Context] = {}
    for asked in options.ctx:
        length = asked
        if model.context_length is not None and asked + options.max_tokens > model.context_length:
            length = model.context_length - options.max_tokens
            if length < 1:
                room = f"leave no room for a prompt in the context of {model.context_length}"
                raise UsageError(f"{options.max_tokens} new tokens {room}; generate fewer (-n)")
            warn(f"--ctx {asked}: prompt capped at {length} tokens, so that {options.max_tokens} more fit the model")
        contexts[asked] = Context(asked, _lengths(length, options.batch, options.ragged))
    return list(contexts.values())


def _lengths(length: int, batch: int, ragged: bool) -> tuple[int, ...]:
    """``batch`` equal lengths, or evenly spread ones up to ``length``."""
    if not ragged:
        return (length,) * batch
    return tuple(max(1, length * (index + 1) // batch) for index in range(batch))


def draw_prompts(model: ModelRecord, lengths: Sequence[int], seed: int, turn: int) -> list[tuple[int, ...]]:
    """Prompts of exactly ``lengths`` random ids, none of them an EOS; another ``turn`` gives fresh ones."""
    allowed = np.setdiff1d(np.arange(model.vocab_size), model.eos_ids)
    draw = np.random.default_rng((seed, turn, *lengths))
    return [tuple(int(token) for token in draw.choice(allowed, length)) for length in lengths]
