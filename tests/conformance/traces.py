"""Token and logprob traces of one model on each loop, and how far two of them are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step

from mlxcel_engine.engine import Engine, SequenceId, SequenceSpec, StepBatch, StopRules, generate
from tests.conformance.configs import VOCAB

if TYPE_CHECKING:
    import mlx.nn as nn

STEPS = 12
LENGTHS = (3, 12, 40, 1)  # of the ragged set's prompts; the last one joins late
JOINS_AT, FIRST_LEAVES_AFTER = 4, 8
CHUNK = 8
TOLERANCE = 1e-4

Trace = tuple[list[int], list[np.ndarray]]


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


def budget(length: int) -> int:
    """How many tokens the ragged set's row of ``length`` prompt tokens generates."""
    return FIRST_LEAVES_AFTER if length == LENGTHS[0] else STEPS


def solo(model: Any, ids: tuple[int, ...], steps: int = STEPS, chunk: int = 2048) -> Trace:
    tokens, rows = [], []
    for token, logprobs in generate_step(mx.array(ids), model, max_tokens=steps, prefill_step_size=chunk):
        tokens.append(int(token))
        rows.append(np.array(logprobs))
    return tokens, rows


def engine_alone(model: nn.Module, ids: tuple[int, ...], chunk: int) -> Trace:
    trace: Trace = ([], [])
    for step in generate(Engine(model), SequenceSpec(ids, chunk=chunk), StopRules(frozenset(), STEPS)):
        trace[0].append(step.token)
        trace[1].append(np.array(step.logprobs))
    return trace


def engine_ragged(engine: Engine) -> dict[int, Trace]:
    """Four rows of other lengths on an engine, traces by prompt length; the last joins late, the first leaves early."""
    traces: dict[int, Trace] = {}
    live: dict[SequenceId, int] = {}

    def join(length: int) -> None:
        sequence = engine.open(SequenceSpec(prompt(length), chunk=CHUNK))
        for piece in engine.plan(sequence).pieces:
            engine.prefill(sequence, piece)
        live[sequence], traces[length] = length, ([], [])

    for length in LENGTHS[:-1]:
        join(length)
    for tick in range(JOINS_AT + STEPS):
        if tick == JOINS_AT:
            join(LENGTHS[-1])
        for sequence, length in list(live.items()):
            if len(traces[length][0]) == budget(length):
                engine.close(sequence)
                del live[sequence]
        for row in engine.step(StepBatch(tuple(live))).rows:
            _append(traces[live[row.id]], row.token, row.logprobs)
    return traces


def mlx_lm_ragged(model: nn.Module) -> dict[int, Trace]:
    """Run the same four rows on ``mlx-lm``'s own ``BatchGenerator``."""
    generator: Any = BatchGenerator(model, prefill_step_size=CHUNK, stream=mx.default_stream(mx.default_device()))
    traces: dict[int, Trace] = {length: ([], []) for length in LENGTHS}
    try:
        lengths = _insert(generator, LENGTHS[:-1])
        for tick in range(200):
            if tick == JOINS_AT:
                lengths |= _insert(generator, LENGTHS[-1:])
            prompts, responses = generator.next()
            for response in responses:
                _append(traces[lengths[response.uid]], response.token, response.logprobs)
            if tick > JOINS_AT and not prompts and not responses:
                break
    finally:
        generator.close()
    return traces


def gap(trace: Trace, reference: Trace) -> Gap:
    """Compare up to the first step with other tokens; traces of other lengths differ at the shorter one's end."""
    steps = min(len(trace[0]), len(reference[0]))
    first = next((i for i in range(steps) if trace[0][i] != reference[0][i]), None)
    if first is None and len(trace[0]) != len(reference[0]):
        first = steps
    compared = steps if first is None else min(first + 1, steps)
    return Gap(max((_largest(trace[1][i], reference[1][i]) for i in range(compared)), default=0.0), first)


def widest(traces: dict[int, Trace], references: dict[int, Trace]) -> Gap:
    """Return the worst row's gap: any row with other tokens before any without, then the largest difference."""
    gaps = [gap(traces[length], references[length]) for length in references]
    return max(gaps, key=lambda g: (g.first is not None, g.largest))


def solo_set(model: nn.Module) -> dict[int, Trace]:
    """Run the ragged set's rows one by one, each alone under ``generate_step``."""
    return {length: solo(model, prompt(length), budget(length), CHUNK) for length in LENGTHS}


def history_effect(model: nn.Module) -> float:
    """How much the sixth-last prompt token moves the next logprobs; a model that forgets it would prove nothing."""
    ids = prompt(12)
    other = (*ids[:6], (ids[6] + 1) % VOCAB, *ids[7:])
    return _largest(solo(model, ids, 1)[1][0], solo(model, other, 1)[1][0])


def _insert(generator: Any, lengths: tuple[int, ...]) -> dict[int, int]:
    uids = generator.insert([list(prompt(length)) for length in lengths], [budget(length) for length in lengths])
    return dict(zip(uids, lengths, strict=True))


def _append(trace: Trace, token: int, logprobs: mx.array) -> None:
    trace[0].append(token)
    trace[1].append(np.array(logprobs))


def _largest(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference; equal infinities are none, a NaN on either side is infinite."""
    with np.errstate(invalid="ignore"):
        difference = np.where(one == two, 0.0, np.abs(one - two))
    return float("inf") if np.isnan(difference).any() else float(difference.max())
