"""Token and logprob traces of one model on each loop, and how far two of them are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step

from mlxcel_engine.engine import Engine, EngineConfig, SequenceId, SequenceSpec, StepBatch, StopRules, generate
from tests.conformance.configs import VOCAB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.nn as nn

STEPS = 12
CHUNK = 8
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """A request of a set: prompt length, steps after which it joins, tokens after which it leaves."""

    length: int
    joins: int = 0
    tokens: int = STEPS
    seed: int = 7

    @property
    def prompt(self) -> tuple[int, ...]:
        return prompt(self.length, self.seed)


RAGGED = (Row(3, tokens=8), Row(12), Row(40), Row(1, joins=4))
EQUAL = (Row(9, seed=1), Row(9, seed=2))  # rows of one length share one offset
Step = tuple[int, np.ndarray]  # token, logprobs
Trace = tuple[list[int], list[np.ndarray]]
_Key = TypeVar("_Key")
_MANY = 200  # iterations


@dataclass(frozen=True)
class Gap:
    """``first``: the first step whose tokens differ, if any; ``largest``: logprob difference up to there."""

    largest: float
    first: int | None

    @property
    def close(self) -> bool:
        return self.first is None and self.largest <= TOLERANCE

    def __str__(self) -> str:
        if self.first is None and self.largest == 0:
            return "bitwise"
        ids = "" if self.first is None else f", other token at {self.first}"
        return f"{self.largest:.0e}{ids}"


def prompt(length: int, seed: int = 7) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed + length).integers(0, VOCAB, length))


class LazyTrace:
    """A trace whose steps are made when they are asked for, once each."""

    def __init__(self, steps: Iterator[Step]) -> None:
        self._steps = steps
        self._made: list[Step] = []

    def __getitem__(self, index: int) -> Step:
        while len(self._made) <= index:
            self._made.append(next(self._steps))
        return self._made[index]

    def tokens(self, count: int) -> list[int]:
        """The first ``count`` of them."""
        return [self[index][0] for index in range(count)]


class References:
    """What rows of a model should give: each alone under ``generate_step``, run once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._traces: dict[Row, Trace] = {}

    def of(self, rows: tuple[Row, ...] = RAGGED) -> dict[Row, Trace]:
        for row in rows:
            if row not in self._traces:
                self._traces[row] = solo(self.model, row.prompt, row.tokens, CHUNK)
        return {row: self._traces[row] for row in rows}


def solo_steps(model: Any, ids: tuple[int, ...], steps: int = STEPS, chunk: int = 2048) -> Iterator[Step]:
    for token, logprobs in generate_step(mx.array(ids), model, max_tokens=steps, prefill_step_size=chunk):
        yield int(token), np.array(logprobs.astype(mx.float32))


def solo(model: Any, ids: tuple[int, ...], steps: int = STEPS, chunk: int = 2048) -> Trace:
    trace: Trace = ([], [])
    for token, logprobs in solo_steps(model, ids, steps, chunk):
        trace[0].append(token)
        trace[1].append(logprobs)
    return trace


def engine_alone(model: nn.Module, ids: tuple[int, ...], chunk: int, exact: bool = True) -> Trace:
    trace: Trace = ([], [])
    engine = Engine(model, EngineConfig(exact=exact))
    for step in generate(engine, SequenceSpec(ids, chunk=chunk), StopRules(frozenset(), STEPS)):
        trace[0].append(step.token)
        trace[1].append(np.array(step.logprobs.astype(mx.float32)))
    return trace


def engine_rows(engine: Engine, rows: tuple[Row, ...] = RAGGED) -> dict[Row, Trace]:
    """Run a set of rows that join and leave on an engine."""
    traces: dict[Row, Trace] = {}
    live: dict[SequenceId, Row] = {}
    step = 0
    while live or len(traces) < len(rows):
        for row in rows:
            if row.joins == step:
                live[_prefilled(engine, row)], traces[row] = row, ([], [])
        for output in engine.step(StepBatch(tuple(live))).rows:
            trace = traces[live[output.id]]
            _append(trace, output.token, output.logprobs)
            if len(trace[0]) == live[output.id].tokens:
                engine.close(output.id)
                del live[output.id]
        step += 1
    return traces


def mlx_lm_rows(model: nn.Module, rows: tuple[Row, ...] = RAGGED) -> dict[Row, Trace]:
    """Run the same set on ``mlx-lm``'s own ``BatchGenerator``; a row joins after as many of its iterations."""
    generator: Any = BatchGenerator(model, prefill_step_size=CHUNK, stream=mx.default_stream(mx.default_device()))
    traces: dict[Row, Trace] = {row: ([], []) for row in rows}
    known: dict[int, Row] = {}
    try:
        for tick in range(_MANY):
            joining = [row for row in rows if row.joins == tick]
            if joining:
                uids = generator.insert([list(row.prompt) for row in joining], [row.tokens for row in joining])
                known.update(zip(uids, joining, strict=True))
            _, responses = generator.next()
            for response in responses:
                _append(traces[known[response.uid]], response.token, response.logprobs)
            if all(len(trace[0]) == row.tokens for row, trace in traces.items()):
                return traces
    finally:
        generator.close()
    raise RuntimeError("BatchGenerator did not finish the rows")


def gap(trace: Trace, reference: Trace) -> Gap:
    """Compare up to the first step with other tokens; traces of other lengths differ at the shorter one's end."""
    steps = min(len(trace[0]), len(reference[0]))
    first = next((i for i in range(steps) if trace[0][i] != reference[0][i]), None)
    if first is None and len(trace[0]) != len(reference[0]):
        first = steps
    compared = steps if first is None else min(first + 1, steps)
    return Gap(max((_largest(trace[1][i], reference[1][i]) for i in range(compared)), default=0.0), first)


def widest(traces: dict[_Key, Trace], references: dict[_Key, Trace]) -> Gap:
    """Return the worst row's gap: any row with other tokens before any without, then the largest difference."""
    gaps = [gap(traces[key], reference) for key, reference in references.items()]
    return max(gaps, key=lambda g: (g.first is not None, g.largest))


def history_effect(model: nn.Module) -> float:
    """How much the sixth-last prompt token moves the next logprobs; a model that forgets it would prove nothing."""
    ids = prompt(12)
    other = (*ids[:6], (ids[6] + 1) % VOCAB, *ids[7:])
    return _largest(solo(model, ids, 1)[1][0], solo(model, other, 1)[1][0])


def _prefilled(engine: Engine, row: Row) -> SequenceId:
    sequence = engine.open(SequenceSpec(row.prompt, chunk=CHUNK))
    for piece in engine.plan(sequence).pieces:
        engine.prefill(sequence, piece)
    return sequence


def _append(trace: Trace, token: int, logprobs: mx.array) -> None:
    trace[0].append(token)
    trace[1].append(np.array(logprobs.astype(mx.float32)))


def _largest(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference; equal infinities are none, a NaN on either side is infinite."""
    with np.errstate(invalid="ignore"):
        difference = np.where(one == two, 0.0, np.abs(one - two))
    return float("inf") if np.isnan(difference).any() else float(difference.max())
