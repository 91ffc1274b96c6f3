from __future__ import annotations

import math
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.sampling import SamplingConfig, sample_rows
from mlxcel_engine.engine.sampling.draw import Turn, draw_rows, score_rows
from tests.engine.sampling import reference
from tests.engine.sampling import rows as make
from tests.engine.sampling.rows import Floats32, row


def kept_by(values: Floats32, version: int, mu: float) -> tuple[list[int], float]:
    """The ids that mirostat leaves, by the papers' formulas, and how near the bound came to another result."""
    exact = values.astype(np.float64)
    ids = reference.ordered(exact)
    probs = reference.probabilities(exact, ids)
    if version == 2:
        surprises = [-math.log2(p) for p in probs]
        margin = min(abs(s - mu) for s in surprises)
        return [i for rank, i in enumerate(ids) if rank == 0 or surprises[rank] <= mu], margin
    pairs = range(min(99, len(ids) - 1))
    steps = [math.log((i + 2) / (i + 1)) for i in pairs]
    falls = [math.log(probs[i] / probs[i + 1]) for i in pairs]
    s = sum(t * b for t, b in zip(steps, falls, strict=True)) / sum(t * t for t in steps)
    try:
        k = ((s - 1) * 2**mu / (1 - float(len(values)) ** -(s - 1))) ** (1 / s)
    except OverflowError:
        return ids, 1.0
    return ids[: max(int(k), 1)], abs(k - round(k)) / max(k, 1.0)


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=60)
@given(make.logprobs(3000), st.sampled_from([0.5, 2.0, 6.0, 10.0]))
def test_a_draw_and_its_next_state_equal_the_reference(version: int, values: Floats32, mu: float) -> None:
    exact = values.astype(np.float64)
    ids = reference.ordered(exact)
    assume(len(ids) > 1 and exact[ids[0]] > exact[ids[-1]])
    expected, margin = kept_by(values, version, mu)
    assume(margin > 1e-3)
    chosen = make.settings(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.2)
    turn = Turn(5, 0, mx.array([mu]))
    scores = score_rows(mx.array(values)[None], chosen, [turn])
    places = np.flatnonzero(np.array(scores.values)[0] > -np.inf)
    left = places if scores.ids is None else np.array(scores.ids)[0][places]
    assert sorted(int(i) for i in left) == sorted(expected)
    tokens, (state,) = draw_rows(mx.array(values)[None], chosen, [turn])
    assert state is not None
    surprise = -math.log2(reference.probabilities(exact, expected)[expected.index(int(np.array(tokens)[0]))])
    assert float(np.array(state)[0]) == pytest.approx(mu - 0.2 * (surprise - 3.0), abs=1e-3)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("values", [np.zeros(50), np.where(np.arange(50) == 7, 0.0, -np.inf)])
def test_flat_and_single_token_distributions_are_drawn_from(version: Literal[1, 2], values: Floats32) -> None:
    sampler = row(SamplingConfig(temperature=1.0, mirostat=version, seed=1))
    for _ in range(3):
        tokens, _ = sample_rows([sampler], mx.array(values.astype(np.float32))[None])
        assert values[int(np.array(tokens)[0])] == 0
    assert sampler.turn.mu is not None
    assert np.isfinite(np.array(sampler.turn.mu)).all()


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_the_mean_surprise_among_the_kept_tokens_settles_at_tau(tau: float) -> None:
    logits = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    exact = make.normalized(logits).astype(np.float64)
    sampler = row(SamplingConfig(temperature=1.0, mirostat=2, mirostat_tau=tau, seed=1))
    surprises = []
    for _ in range(200):
        mu = float(np.array(sampler.turn.mu)[0])
        token = int(np.array(sample_rows([sampler], mx.array(logits)[None])[0])[0])
        kept, _ = kept_by(make.normalized(logits), 2, mu)
        surprises.append(-math.log2(reference.probabilities(exact, kept)[kept.index(token)]))
    assert np.mean(surprises[60:]) == pytest.approx(tau, abs=0.4)


def test_scores_of_an_earlier_position_use_the_state_of_that_position() -> None:
    logits = mx.array(np.random.default_rng(0).normal(0, 3, (1, 200)).astype(np.float32))
    sampler = row(SamplingConfig(temperature=1.0, mirostat=2, seed=1))
    steps = [sample_rows([sampler], logits) for _ in range(6)]
    for position, (token, logprobs) in enumerate(steps):
        assert int(np.array(sampler.scores(logprobs[0], position)).argmax()) == int(np.array(token)[0])
