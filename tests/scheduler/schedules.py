"""Random schedules around one observed request, and whether its logits are those of the request alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.nn as nn
import numpy as np
from hypothesis import strategies as st

from mlxcel_engine.engine import Engine, EngineConfig, FixedShapes, SequenceSpec, StopRules, generate
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.blocks import blocks_for
from mlxcel_engine.scheduler import Request, RequestHandle, SchedulerConfig
from tests.conformance.traces import Trace
from tests.scheduler.driven import SAMPLINGS, Driven

SHAPES = (FixedShapes(1, 16), FixedShapes(2, 8), FixedShapes(4, 32), FixedShapes(3, 24), FixedShapes(8, 64))
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 128, 129)


@dataclass(frozen=True)
class Asked:
    """One request: its prompt is the first ``length`` tokens of a stem, ``own`` of its last ones its own."""

    length: int
    tokens: int
    arrives: int = 0
    own: int = 0
    sampling: str = "greedy"
    priority: int = 0
    cancelled: int | None = None


@dataclass(frozen=True)
class Schedule:
    """``spare`` blocks of KV beyond those of the largest request; None for no bound. ``cache`` bytes of prompt cache.

    ``primed`` tokens of the observed prompt were asked for before.
    """

    observed: Asked
    neighbours: tuple[Asked, ...] = ()
    shapes: FixedShapes | None = SHAPES[2]
    storage: Storage = "dense"
    spare: int | None = None
    cache: int = 0
    primed: int | None = None
    max_batch: int = 16
    chunk: int = 2048
    exact: bool = True


@st.composite
def schedules(draw: st.DrawFn, storages: tuple[Storage, ...], longest: int, tokens: int) -> Schedule:
    lengths = st.one_of(st.sampled_from(EDGES), st.integers(1, longest)).map(lambda length: min(length, longest))

    def asked() -> Asked:
        return Asked(
            length=draw(lengths),
            tokens=draw(st.integers(1, tokens)),
            arrives=draw(st.integers(0, 20)),
            own=draw(st.sampled_from((0, 0, 1, 5, longest))),
            sampling=draw(st.sampled_from(sorted(SAMPLINGS))),
            priority=draw(st.integers(-1, 1)),
        )

    cancels = [draw(st.sampled_from((None, None, 3, 12))) for _ in range(draw(st.integers(1, 8)))]
    observed = replace(asked(), own=0)
    return Schedule(
        observed,
        tuple(replace(asked(), cancelled=cancel) for cancel in cancels),
        draw(st.sampled_from(SHAPES)),
        draw(st.sampled_from(storages)),
        draw(st.sampled_from((None, 0, 1, 4))),
        draw(st.sampled_from((0, 200_000, 10**9))),
        draw(st.one_of(st.none(), st.integers(1, observed.length))),
        draw(st.sampled_from((2, 5, 16))),
        draw(st.sampled_from((5, 64, 2048))),
        draw(st.booleans()),
    )


class Bench:
    """A model, its vocabulary, and what requests on it give alone; each is run once."""

    def __init__(self, model: nn.Module, vocabulary: int) -> None:
        self.model = model
        self._vocabulary = vocabulary
        self._stem = self._ids(1000)
        self._alone: dict[tuple[FixedShapes | None, bool, Asked], Trace] = {}

    def _ids(self, length: int, seed: int = 0) -> tuple[int, ...]:
        return tuple(int(token) for token in np.random.default_rng(seed).integers(0, self._vocabulary, length))

    def request(self, asked: Asked, cached: bool = False) -> Request:
        own = min(asked.own, asked.length)
        prompt = (*self._stem[: asked.length - own], *self._ids(own, 1 + asked.arrives))
        rules = StopRules(frozenset(), asked.tokens)
        key = "" if cached else None
        sampling = SAMPLINGS[asked.sampling]
        return Request(prompt, rules, sampling, priority=asked.priority, cache_key=key, logprobs=True)

    def alone(self, shapes: FixedShapes | None, exact: bool, asked: Asked) -> Trace:
        """The request on a dense engine of its own, without a scheduler."""
        key = shapes, exact, Asked(asked.length, 0, sampling=asked.sampling)
        tokens, rows = self._alone.setdefault(key, ([], []))
        if len(tokens) < asked.tokens:
            request = self.request(asked)
            engine = Engine(self.model, EngineConfig(exact=exact, invariant=shapes or False))
            spec = SequenceSpec(request.prompt, request.sampling)
            steps = list(generate(engine, spec, request.rules))
            tokens[:] = [step.token for step in steps]
            rows[:] = [np.array(step.logprobs) for step in steps]
        return tokens, rows

    def run(self, schedule: Schedule) -> RequestHandle:
        """Run the whole schedule tick by tick; the observed request's handle."""
        scheduler = self._scheduler(schedule)
        cached = schedule.cache > 0
        if schedule.primed is not None and cached:
            scheduler.submit(self.request(Asked(schedule.primed, 1), cached=True))
            scheduler.finish()
        observed = None
        waiting = [schedule.observed, *schedule.neighbours]
        leaving: list[tuple[int, RequestHandle]] = []
        for tick in range(10_000):
            for asked in [asked for asked in waiting if asked.arrives <= tick]:
                waiting.remove(asked)
                handle = scheduler.submit(self.request(asked, cached))
                if asked is schedule.observed:
                    observed = handle
                elif asked.cancelled is not None:
                    leaving.append((tick + asked.cancelled, handle))
            for _, handle in [one for one in leaving if one[0] == tick]:
                handle.cancel()
            if not waiting and observed is not None and observed.done:
                break
            scheduler.turn()
        scheduler.shutdown_now()
        assert observed is not None
        return observed

    def _scheduler(self, schedule: Schedule) -> Driven:
        blocks = None
        if schedule.spare is not None:
            everyone = (schedule.observed, *schedule.neighbours)
            blocks = max(blocks_for(asked.length + asked.tokens) for asked in everyone) + schedule.spare
        paged = schedule.storage == "paged"
        fixed = EngineConfig(schedule.storage, blocks if paged else None, schedule.exact, schedule.shapes or False)
        config = SchedulerConfig(
            max_batch=schedule.max_batch,
            chunk=schedule.chunk,
            kv_tokens=None if paged or blocks is None else 16 * blocks,
            detached_bytes=0 if schedule.shapes else 10**9,
            prompt_cache_bytes=schedule.cache,
            priority_ticks=5,
        )
        return Driven(Engine(self.model, fixed), config)

    def differing_steps(self, schedule: Schedule, handle: RequestHandle) -> list[int]:
        """The steps of the observed request whose token or logprobs are not bitwise those of the request alone."""
        result = handle.wait(0)
        assert (result.error, len(result.tokens)) == (None, schedule.observed.tokens)
        ids, rows = self.alone(schedule.shapes, schedule.exact, schedule.observed)
        return [
            event.index
            for event in handle._events
            if event.token != ids[event.index] or not np.array_equal(np.array(event.logprobs), rows[event.index])
        ]
