from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.sampling import RowSampler, SamplingConfig, greedy, row_ok, sample_rows
from mlxcel_engine.engine.sampling.draw import Turn, draw_rows, score_rows
from mlxcel_engine.engine.sampling.keys import TOKEN, XTC, draw_key
from mlxcel_engine.engine.sampling.noise import gumbel, uniforms
from tests.engine.sampling import reference
from tests.engine.sampling import rows as make
from tests.engine.sampling.rows import Floats32, row

V = 301
RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 2, (3, V)).astype(np.float32)
XTC_FEW = {"xtc_probability": 1.0, "xtc_threshold": 0.01}


def tokens(
    sampler: RowSampler, steps: int, logits: Floats32 = LOGITS[0], mates: Sequence[RowSampler] = ()
) -> list[int]:
    """The row's tokens over ``steps`` whose logits are rolled by one place each, its ``mates`` before it."""
    drawn = []
    for step in range(steps):
        batch = np.stack([*(np.roll(LOGITS[1], 3 * step + i) for i in range(len(mates))), np.roll(logits, step)])
        found, _ = sample_rows([*mates, sampler], mx.array(batch))
        drawn.append(int(np.array(found)[-1]))
    return drawn


def test_keys_of_positions_seeds_and_purposes_are_different_and_fixed() -> None:
    keys = [draw_key(seed, p, use) for seed in (0, 1, 2**63, 2**64 - 1) for p in range(500) for use in (TOKEN, XTC)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= word < 2**32 for key in keys for word in key)


def test_noise_of_a_row_is_that_of_its_key_alone_and_finite() -> None:
    keys = mx.array(np.array([draw_key(seed, 3) for seed in range(5)], dtype=np.uint32))
    together = np.array(uniforms(keys, V))
    assert all(np.array_equal(together[i], np.array(uniforms(keys[i : i + 1], V))[0]) for i in range(5))
    edges = np.array(gumbel(mx.array([0.0, 2.0**-32, 0.5, 1 - 2.0**-24])))
    assert np.isfinite(edges).all()
    assert edges[2] == pytest.approx(-math.log(math.log(2)))


def chi_square(counts: Sequence[int], probabilities: Sequence[float]) -> float:
    total = sum(counts)
    return sum((c - total * p) ** 2 / (total * p) for c, p in zip(counts, probabilities, strict=True))


def draws_of_one_step(seeds: Sequence[int], temperature: float) -> tuple[list[int], list[float]]:
    """How often each of 6 tokens was drawn over many positions, and its probability."""
    logprobs = make.normalized(np.array([0.0, 1.0, -1.0, 0.5, 2.0, -2.0], dtype=np.float32))
    chosen = make.settings(temperature=temperature)
    turns = [Turn(seed, position) for seed in seeds for position in range(2000)]
    found, _ = draw_rows(mx.array(np.tile(logprobs, (len(turns), 1))), chosen, turns)
    weights = np.exp(logprobs.astype(np.float64) / temperature)
    return np.bincount(np.array(found), minlength=6).tolist(), (weights / weights.sum()).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_over_positions_and_seeds_follow_the_softmax(temperature: float) -> None:
    counts, probabilities = draws_of_one_step(range(10), temperature)
    assert chi_square(counts, probabilities) < 20.5  # 5 degrees of freedom, 0.1 %


def test_the_chi_square_tells_another_temperature() -> None:
    counts, _ = draws_of_one_step(range(10), 1.0)
    _, other = draws_of_one_step(range(1), 1.1)
    assert chi_square(counts, other) > 20.5


ROWS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.9},
    "min-p": {"temperature": 0.9, "min_p": 0.05},
    "filters": {"temperature": 0.9, "top_k": 40, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.01},
    "xtc": {"temperature": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "dynamic": {"temperature": 0.9, "dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    "mirostat 1": {"temperature": 0.9, "mirostat": 1},
    "mirostat 2": {"temperature": 0.9, "mirostat": 2},
    "seeded": SamplingConfig.seeded(42).model_dump(exclude_defaults=True),
}


@pytest.mark.parametrize("name", ROWS)
def test_seed_42_draws_the_same_alone_and_beside_others_anywhere_in_the_batch(name: str) -> None:
    def one(seed: int | None, **options: Any) -> RowSampler:
        config = SamplingConfig(**{**(options or ROWS[name]), "seed": seed})
        return row(config, [1, 2, 3], breakers=[[4]], eos=(7, 9))

    alone = tokens(one(42), 12)
    assert len(set(alone)) > 1
    assert tokens(one(42), 12, mates=[one(None)]) == alone
    assert tokens(one(42), 12, mates=[one(7)]) == alone
    assert tokens(one(42), 12, mates=[one(7), one(0), row(SamplingConfig())]) == alone
    assert tokens(one(42), 12, mates=[one(7, temperature=1.5, top_k=3)]) == alone
    assert tokens(one(7), 12) != alone
    assert tokens(one(0), 12) == tokens(one(0), 12) != alone


@pytest.mark.parametrize("name", ROWS)
def test_rows_together_equal_row_by_row_bitwise(name: str) -> None:
    def samplers() -> list[RowSampler]:
        return [row(SamplingConfig(**{**ROWS[name], "seed": seed}), [1, 2, 3 + seed]) for seed in range(3)]

    together, alone = samplers(), samplers()
    for _ in range(3):
        found, logprobs = sample_rows(together, mx.array(LOGITS))
        single = [sample_rows([one], mx.array(LOGITS[i : i + 1])) for i, one in enumerate(alone)]
        assert np.array_equal(np.array(logprobs), np.concatenate([np.array(lp) for _, lp in single]))
        assert np.array(found).tolist() == [int(np.array(t)[0]) for t, _ in single]


def test_global_random_state_neither_matters_nor_moves() -> None:
    mx.random.seed(1)
    global_state: Any = mx.random.state
    state = np.array(global_state[0])
    first = tokens(row(SamplingConfig.seeded(3)), 5)
    assert np.array_equal(np.array(global_state[0]), state)
    mx.random.seed(2)
    assert tokens(row(SamplingConfig.seeded(3)), 5) == first


def test_greedy_takes_the_lowest_id_of_equal_tokens() -> None:
    assert greedy(mx.array([[0.0, 3.0, 3.0], [1.0, 1.0, 1.0]])).tolist() == [1, 0]


@settings(max_examples=30)
@given(make.logprobs(300), st.sampled_from(sorted(ROWS)), st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_the_token_is_the_largest_score_and_filtered_tokens_score_minus_infinity(
    values: Floats32, name: str, seed: int, position: int
) -> None:
    config = SamplingConfig(**{**ROWS[name], "seed": seed})
    sampler = row(config)
    mu = sampler.turn.mu
    found, _ = draw_rows(mx.array(values)[None], sampler.settings, [Turn(seed, position, mu)])
    if config.mirostat:
        position = 0
        found, _ = draw_rows(mx.array(values)[None], sampler.settings, [sampler.turn])
    scores = np.array(sampler.scores(mx.array(values), position))
    assert scores.shape == values.shape
    assert not np.isnan(scores).any()
    assert int(np.array(found)[0]) == int(scores.argmax())
    assert (scores[values == -np.inf] == -np.inf).all()


@settings(max_examples=30)
@given(make.logprobs(300), st.sampled_from([0.3, 1.0]), st.sampled_from([0.2, 1.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_dynamic_temperature_equals_the_reference(values: Floats32, low: float, span: float, exponent: float) -> None:
    config = SamplingConfig(temperature=low, dynatemp_range=span, dynatemp_exponent=exponent)
    scores = score_rows(mx.array(values)[None], make.settings(**config.model_dump(exclude_defaults=True)), [Turn(0, 0)])
    exact = values.astype(np.float64)
    temperature = reference.dynamic_temperature(exact, reference.ordered(exact), config)
    shifted = exact - exact.max()
    found = np.array(scores.weights)[0]
    if temperature > 1e-3:
        np.testing.assert_allclose(found, shifted / temperature, rtol=2e-3, atol=1e-4)
    else:
        assert found.argmax() == exact.argmax()


def test_dynamic_temperature_of_0_leaves_the_likeliest() -> None:
    values = np.array([[-200.0, 0.0, -300.0]], dtype=np.float32)
    chosen = make.settings(temperature=0.5, dynatemp_range=0.5)
    assert np.array(score_rows(mx.array(values), chosen, [Turn(0, 0)]).weights).tolist() == [[-math.inf, 0, -math.inf]]


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
@pytest.mark.parametrize("span", [0.0, 1e-6, 1e6])
def test_extreme_temperatures_draw_a_token_of_the_vocabulary(temperature: float, span: float) -> None:
    chosen: dict[str, Any] = {"temperature": temperature, "dynatemp_range": span, "seed": 1}
    drawn = tokens(row(SamplingConfig(**chosen)), 5) + tokens(row(SamplingConfig(**chosen, top_k=3)), 5)
    assert max(drawn) < V


def test_the_coin_of_xtc_falls_as_often_as_it_should_and_eos_always_stays() -> None:
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], dtype=np.float32))
    sampler = row(SamplingConfig(temperature=1.0, xtc_probability=0.3, seed=9), eos=(1, 50_000))
    dropped = [bool(np.isinf(np.array(sampler.scores(mx.array(logits[0]), position))[0])) for position in range(400)]
    assert 0.22 < sum(dropped) / 400 < 0.38
    always = row(SamplingConfig(temperature=1.0, xtc_probability=1.0, seed=9), eos=(0, 1, 2))
    for position in range(20):
        assert np.isfinite(np.array(always.scores(mx.array(logits[0]), position))).all()


def test_a_row_that_is_all_masked_or_nan_is_found_and_its_neighbours_are_not_touched() -> None:
    for bad in (np.full(V, -np.inf), np.where(np.arange(V) == 5, np.nan, 0.0)):
        batch = LOGITS.copy()
        batch[1] = bad
        for config in (SamplingConfig(), *(SamplingConfig(**{**options, "seed": 1}) for options in ROWS.values())):
            found, logprobs = sample_rows([row(config) for _ in range(3)], mx.array(batch))
            oks = [row_ok(int(token), logprobs[i]) for i, token in enumerate(np.array(found))]
            assert oks == [True, False, True]
            clean, _ = sample_rows([row(config) for _ in range(3)], mx.array(LOGITS))
            assert np.array(found)[[0, 2]].tolist() == np.array(clean)[[0, 2]].tolist()


def traced(function: Callable[[mx.array], Any]) -> None:
    """Run ``function`` on an array that has no values yet, so that any read of it raises."""
    mx.compile(function)(mx.array(LOGITS))


@pytest.mark.parametrize("name", ["greedy", *ROWS])
def test_nothing_is_read_by_the_host(name: str) -> None:
    config = SamplingConfig(**{**ROWS.get(name, {}), "seed": 1})
    samplers = [row(config, [1, 2, 3], breakers=[[4], [5, 6]], eos=(7,)) for _ in range(3)]

    def two_steps(logits: mx.array) -> Any:
        sample_rows(samplers, logits)
        return sample_rows(samplers, logits)

    traced(two_steps)


def test_a_read_by_the_host_would_be_found() -> None:
    with pytest.raises(ValueError, match="eval an array during function transformations"):
        traced(lambda logits: logits if row_ok(0, logits[0]) else -logits)


def test_token_0_of_a_good_row_is_ok() -> None:
    found, logprobs = sample_rows([row(SamplingConfig())], mx.array([[3.0, 1.0]]))
    assert row_ok(int(np.array(found)[0]), logprobs[0])


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {4: 1.0}},
        {"repeat_penalty": 1.5},
        {"repeat_penalty": 1.5, "repeat_last_n": 1},
        {"repeat_penalty": 1.5, "repeat_last_n": 0},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"dry_multiplier": 0.5},
        {"dry_multiplier": 0.5, "dry_base": 3.0},
        {"dry_multiplier": 0.5, "dry_allowed_length": 1},
        {"dry_multiplier": 0.5, "dry_penalty_last_n": 3},
        {"dry_multiplier": 0.5, "dry_penalty_last_n": 0},
        {"temperature": 0.5},
        {"temperature": 0.5, "dynatemp_range": 0.2},
        {"temperature": 0.5, "dynatemp_range": 0.2, "dynatemp_exponent": 3.0},
        {"temperature": 0.5, "top_k": 5},
        {"temperature": 0.5, "top_p": 0.8},
        {"temperature": 0.5, "top_p": 0.8, "min_keep": 200},
        {"temperature": 0.5, "min_p": 0.3},
        {"temperature": 0.5, "typical_p": 0.5},
        {"temperature": 0.5, **XTC_FEW},
        {"temperature": 0.5, **XTC_FEW, "xtc_threshold": 0.02},
        {"temperature": 0.5, "mirostat": 1},
        {"temperature": 0.5, "mirostat": 1, "mirostat_tau": 1.0},
        {"temperature": 0.5, "mirostat": 2},
        {"temperature": 0.5, "mirostat": 2, "mirostat_tau": 1.0},
        {"temperature": 0.5, "mirostat": 2, "mirostat_eta": 3.0},
        {"temperature": 0.5, "seed": 2},
    ],
    ids=str,
)
def test_every_accepted_option_changes_the_scores_of_an_example(options: dict[str, Any]) -> None:
    def scores(chosen: dict[str, Any]) -> Floats32:
        sampler = row(SamplingConfig(**{"seed": 1, **chosen}), [1, 2, 3, 4, 1, 2, 3, 1, 2, 3])
        steps = [sample_rows([sampler], mx.array(LOGITS[:1]))[1] for _ in range(2)]
        found = [np.array(sampler.scores(logprobs[0], position)) for position, logprobs in enumerate(steps)]
        result: Floats32 = np.concatenate(found)
        return result

    *_, last = options
    without = {name: value for name, value in options.items() if name != last}
    assert not np.array_equal(scores(options), scores(without))
