"""What is to be measured: options, contexts capped to the model, prompts drawn. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mlxcel_engine.bench.loops import LoopSettings
from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_engine.records.bench import StorageName, WarmupName
    from mlxcel_engine.records.model import ModelRecord

WarmupChoice = Literal["auto", "full", "chunk", "none"]


def resolve_warmup(device: str, choice: WarmupChoice) -> WarmupName:
    """Resolve ``auto``: the whole prompt on a GPU, where it is cheap, its first chunk on a CPU."""
    if choice == "auto":
        return "chunk" if device == "cpu" else "full"
    return choice


@dataclass(frozen=True)
class BenchOptions:
    """How to measure; ``ctx`` and ``max_tokens`` in tokens a stream, ``warmup_tokens`` decoded in a warm-up.

    ``invariant`` names the shapes of the loops of the invariant mode, for the record.
    """

    ctx: tuple[int, ...]
    max_tokens: int
    warmup: WarmupName
    warmup_tokens: int = 16
    prefill_chunk: int = DEFAULT_CHUNK
    storage: StorageName = "auto"
    batch: int = 1
    ragged: bool = False
    ignore_eos: bool = True
    prompt_cache: bool = False
    seed: int = 0
    label: str | None = None
    invariant: str | None = None

    def loop_settings(self, model: ModelRecord, tell_prefill: Callable[[int], None]) -> LoopSettings:
        """Return what a loop has to know of these options."""
        eos_ids = frozenset[int]() if self.ignore_eos else frozenset(model.eos_ids)
        return LoopSettings(self.prefill_chunk, self.storage, self.batch, eos_ids, self.prompt_cache, tell_prefill)


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
        UsageError: not even one prompt token fits, or the prompt cache is asked for a prompt of one.

    """
    room = None if model.context_length is None else model.context_length - options.max_tokens
    if room is not None and room < 1:
        bound = f"no room for a prompt in the context of {model.context_length}"
        raise UsageError(f"{options.max_tokens} new tokens leave {bound}; generate fewer (-n)")
    contexts = []
    for asked in dict.fromkeys(options.ctx):
        length = asked if room is None else min(asked, room)
        if options.prompt_cache and length < 2:
            remedy = "give --ctx 2 or more" if asked < 2 else "generate fewer (-n)"
            raise UsageError(f"--prompt-cache: a prompt of one token has no prefix to keep; {remedy}")
        if length < asked:
            total = f"with {options.max_tokens} new ones they fill the context of {model.context_length}"
            warn(f"ctx {asked}: the prompt is capped at {length} tokens; {total}")
        if DEFAULT_CHUNK != options.prefill_chunk > length:
            warn(f"--prefill-chunk {options.prefill_chunk}: a prompt of {length} tokens is one chunk")
        contexts.append(Context(asked, _lengths(length, options.batch, options.ragged)))
    return contexts


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
