"""Each family equals ``generate_step`` alone: tokens and logprobs, as a batch of one and in a ragged batch of four."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from mlxcel_engine.engine import Engine, SequenceId, SequenceSpec, StepBatch, StopRules, generate
from mlxcel_engine.engine.families import BATCHED_FAMILIES, family_support
from mlxcel_engine.engine.kv import dense
from tests.tiny import CONFIGS, VOCAB, tiny_model

STEPS = 12
LENGTHS = (3, 12, 40, 1)
Trace = tuple[list[int], list[np.ndarray]]


def prompt(length: int, seed: int = 7) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed + length).integers(0, VOCAB, length))


def solo(model: Any, ids: tuple[int, ...], steps: int = STEPS, chunk: int = 2048) -> Trace:
    tokens, rows = [], []
    for token, logprobs in generate_step(mx.array(ids), model, max_tokens=steps, prefill_step_size=chunk):
        tokens.append(int(token))
        rows.append(np.array(logprobs))
    return tokens, rows


def assert_equals(trace: Trace, reference: Trace, tolerance: float = 1e-4) -> None:
    assert trace[0] == reference[0]
    np.testing.assert_allclose(np.stack(trace[1]), np.stack(reference[1]), atol=tolerance, rtol=0)


def ragged(engine: Engine, steps: int = STEPS) -> dict[int, Trace]:
    """Four rows of other lengths; the last joins after 4 steps, the first leaves after 8."""
    traces: dict[int, Trace] = {}
    live: dict[SequenceId, int] = {}

    def join(length: int) -> None:
        sequence = engine.open(SequenceSpec(prompt(length), chunk=8))
        for piece in engine.plan(sequence).pieces:
            engine.prefill(sequence, piece)
        live[sequence], traces[length] = length, ([], [])

    for length in LENGTHS[:-1]:
        join(length)
    for tick in range(steps + 4):
        if tick == 4:
            join(LENGTHS[-1])
        for sequence, length in list(live.items()):
            if len(traces[length][0]) == (8 if length == LENGTHS[0] else steps):
                engine.close(sequence)
                del live[sequence]
        for row in engine.step(StepBatch(tuple(live))).rows:
            tokens, rows = traces[live[row.id]]
            tokens.append(row.token)
            rows.append(np.array(row.logprobs))
    return traces


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_batch_of_one_is_bitwise_generate_step(name: str) -> None:
    model = tiny_model(name)
    for length in (1, 2, 33):
        trace: Trace = ([], [])
        spec = SequenceSpec(prompt(length), chunk=16)
        for step in generate(Engine(model), spec, StopRules(frozenset(), STEPS)):
            trace[0].append(step.token)
            trace[1].append(np.array(step.logprobs))
        assert_equals(trace, solo(model, prompt(length), chunk=16), tolerance=0)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_rows_of_a_ragged_batch_equal_solo(name: str) -> None:
    model = tiny_model(name)
    for length, trace in ragged(Engine(model)).items():
        assert_equals(trace, solo(model, prompt(length), steps=len(trace[0]), chunk=8))


def test_every_family_that_claims_a_batched_view_is_proven_here() -> None:
    supports = [family_support(tiny_model(name)) for name in CONFIGS]
    assert {support.family for support in supports if support.batched} == BATCHED_FAMILIES


@pytest.mark.parametrize(
    ("name", "reason"),
    [("llama-sliding", "RotatingKVCache"), ("lfm2", "ArraysCache"), ("stablelm", "not proven")],
)
def test_a_family_that_is_not_batched_says_why(name: str, reason: str) -> None:
    support = family_support(tiny_model(name))
    assert not support.batched
    assert reason in support.reason


def test_a_wrong_view_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with one row's keys read one token short, the comparison above fails."""
    read = dense.Slab.read

    def short(self: dense.Slab, layer: int, length: int) -> tuple[mx.array, mx.array]:
        return read(self, layer, length - 1 if length > 8 else length)

    monkeypatch.setattr(dense.Slab, "read", short)
    model = tiny_model("llama")
    traces = ragged(Engine(model))
    with pytest.raises(AssertionError):
        assert_equals(traces[40], solo(model, prompt(40), steps=len(traces[40][0]), chunk=8))
