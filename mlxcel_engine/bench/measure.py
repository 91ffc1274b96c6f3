"""One measurement: a path is set up, warmed up and timed once, with a fresh prompt. No MLX."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

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
    """What was seen of a timed pass; ``attention_calls`` are those of the pass alone.

    ``warm`` is the pass again, the same prompts taken from the prompt cache, where one was asked for; ``failure`` is
    why there is none then.
    """

    streams: list[StreamTimes]
    warm: list[StreamTimes] | None
    storage: str
    chunk: int
    attention_calls: int | None
    peak_memory_bytes: int
    failure: Exception | None = None


class _PassProgress:
    """Tells an observer the phases of one measurement: warm-up or prefill in prompt tokens, decode in new ones."""

    def __init__(self, observer: Observer, name: str) -> None:
        self._observer, self._name = observer, name
        self._decoding = False

    def begin(self, phase: str, total: int) -> None:
        self._decoding = phase == "decode"
        self._observer.phase(f"{self._name}: {phase}", total)

    def prefilled(self, tokens: int) -> None:
        if not self._decoding:  # in a batch, a prompt may follow when others decode already
            self._observer.token(tokens)

    def decoded(self, tokens: int, total: int) -> None:
        if not self._decoding:
            self.begin("decode", total)
        self._observer.token(tokens)


def measure(rig: Rig, loop: DecodeLoop, context: Context, options: BenchOptions, observer: Observer) -> Measured:
    """Time one pass of ``loop``; the warm-up has a prompt of its own.

    Raises:
        RunError: paged KV was asked for and the pass did not go through it, or a stream did not end.

    """
    progress = _PassProgress(observer, f"{loop.name}, ctx {context.asked}")
    prompts = draw_prompts(rig.model, context.lengths, options.seed, 1)
    rig.memory.settle()
    with loop.open(options.loop_settings(rig.model, progress.prefilled)) as session:
        _warm_up(rig, session, context, options, progress)
        rig.memory.settle()
        rig.memory.begin_peak()
        calls = session.attention_calls
        progress.begin("prefill", sum(context.lengths))
        streams = _timed(rig, session, prompts, options.max_tokens, progress)
        peak = rig.memory.peak()
        made = None if calls is None or session.attention_calls is None else session.attention_calls - calls
        if loop.chooses_storage and options.storage == "paged" and not (session.storage == "paged" and made):
            seen = f"storage {session.storage}, {made} paged attention calls"
            raise RunError(f"paged KV was asked for, but not used ({seen})")
        measured = Measured(streams, None, session.storage, session.chunk, made, peak)
        if not (options.prompt_cache and loop.caches_prompts):
            return measured
        try:
            return replace(measured, warm=_timed_again(rig, session, prompts, progress))
        except Exception as error:  # the pass before it was measured all the same
            return replace(measured, failure=error)


def _warm_up(rig: Rig, session: Session, context: Context, options: BenchOptions, progress: _PassProgress) -> None:
    """Run what the timed pass will: the whole prompt, or its first chunk, and some decode steps."""
    if options.warmup == "none":
        return
    longest = options.prefill_chunk if options.warmup == "chunk" else context.longest
    lengths = tuple(min(length, longest) for length in context.lengths)
    progress.begin("warm-up", sum(lengths))
    with closing(session.run(draw_prompts(rig.model, lengths, options.seed, 0), options.warmup_tokens)) as events:
        for _ in events:
            pass


def _timed_again(rig: Rig, session: Session, prompts: Prompts, progress: _PassProgress) -> list[StreamTimes]:
    """Time the first token of the same prompts, which the prompt cache now has."""
    rig.memory.settle()
    before = session.adopted_tokens
    progress.begin("the same prompt again", sum(map(len, prompts)))
    streams = _timed(rig, session, prompts, 1, progress)
    if session.adopted_tokens == before:
        kept = "paged KV is kept in whole blocks, the invariant mode's in chunks: give a longer --ctx"
        raise RunError(f"no token of a prompt came from the prompt cache; {kept}")
    return streams


def _timed(rig: Rig, session: Session, prompts: Prompts, max_tokens: int, progress: _PassProgress) -> list[StreamTimes]:
    total = max_tokens * len(prompts)
    with closing(session.run(prompts, max_tokens)) as events:
        return time_streams(events, len(prompts), rig.clock, lambda tokens: progress.decoded(tokens, total))
