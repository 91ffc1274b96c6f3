"""One measurement: a path is set up, warmed up and timed once, with a fresh prompt. No MLX."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mlxcel_engine.bench.loops import LoopSettings
from mlxcel_engine.bench.plan import draw_prompts
from mlxcel_engine.bench.timing import time_streams
from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from mlxcel_engine.bench.loops import DecodeLoop, Prompts, Session
    from mlxcel_engine.bench.plan import BenchOptions, Context
    from mlxcel_engine.bench.rig import Rig
    from mlxcel_engine.bench.timing import StreamTimes


class Observer(Protocol):
    """Hears of the progress of a run."""

    def phase(self, text: str, total: int | None = None) -> None:
        """A phase of ``total`` units, or of unknown length, begins."""
        ...

    def token(self, count: int) -> None:
        """``count`` units of the phase are done."""
        ...


@dataclass(frozen=True)
class Measured:
    """What was seen of a timed pass; ``attention_calls`` are those of the pass alone."""

    streams: list[StreamTimes]
    storage: str
    attention_calls: int | None
    peak_memory_bytes: int


def settings_for(options: BenchOptions, rig: Rig, observer: Observer) -> LoopSettings:
    """Set loops up as ``options`` say."""
    eos_ids = frozenset[int]() if options.ignore_eos else frozenset(rig.model.eos_ids)
    return LoopSettings(options.prefill_chunk, options.storage, options.batch, eos_ids, observer.token)


def measure(rig: Rig, loop: DecodeLoop, context: Context, options: BenchOptions, observer: Observer) -> Measured:
    """Time one pass of ``loop``; the warm-up has a prompt of its own.

    Raises:
        RunError: paged KV was asked for and the pass did not go through it, or a stream did not end.

    """
    name = f"{loop.name}, ctx {context.asked}"
    rig.memory.settle()
    with loop.open(settings_for(options, rig, observer)) as session:
        _warm_up(rig, session, context, options, observer, name)
        rig.memory.settle()
        rig.memory.begin_peak()
        calls = session.attention_calls
        prompts = draw_prompts(rig.model, context.lengths, options.seed, turn=1)
        streams = _timed(rig, session, prompts, options.max_tokens, observer, name)
        peak = rig.memory.peak()
        made = None if calls is None or session.attention_calls is None else session.attention_calls - calls
        if loop.chooses_storage and options.storage == "paged" and not (session.storage == "paged" and made):
            seen = f"storage {session.storage}, {made} paged attention calls"
            raise RunError(f"paged KV was asked for, but not used ({seen})")
        return Measured(streams, session.storage, made, peak)


def _warm_up(
    rig: Rig, session: Session, context: Context, options: BenchOptions, observer: Observer, name: str
) -> None:
    """Run what the timed pass will: the whole prompt, or its first chunk, and some decode steps."""
    if options.warmup == "none":
        return
    longest = options.prefill_chunk if options.warmup == "chunk" else context.longest
    lengths = tuple(min(length, longest) for length in context.lengths)
    observer.phase(f"{name}: warm-up", sum(lengths))
    prompts = draw_prompts(rig.model, lengths, options.seed, turn=0)
    with closing(session.run(prompts, options.warmup_tokens)) as events:
        for _ in events:
            pass


def _timed(
    rig: Rig, session: Session, prompts: Prompts, max_tokens: int, observer: Observer, name: str
) -> list[StreamTimes]:
    decoding = False

    def tell(count: int) -> None:
        nonlocal decoding
        if not decoding:
            observer.phase(f"{name}: decode", max_tokens * len(prompts))
            decoding = True
        observer.token(count)

    observer.phase(f"{name}: prefill", sum(map(len, prompts)))
    with closing(session.run(prompts, max_tokens)) as events:
        return time_streams(events, len(prompts), rig.clock, tell)
