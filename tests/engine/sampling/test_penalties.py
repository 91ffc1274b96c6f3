from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.sampling import SamplingConfig
from mlxcel_engine.engine.sampling.dry import suffix_matches
from mlxcel_engine.errors import EngineError
from tests.engine.sampling import reference
from tests.engine.sampling.rows import Floats32, processed, row

few = settings(max_examples=40)
LOGITS = np.array([2.0, -1.0, 0.0, 5.0, -np.inf, 1.0, 1.0, -3.0], dtype=np.float32)
histories = st.lists(st.integers(0, 7), min_size=1, max_size=40) | st.lists(st.integers(0, 1), min_size=1, max_size=40)


def stepwise(config: SamplingConfig, history: list[int], split: int, **kwargs: Any) -> Floats32:
    """The logits after the first part where only ``history[:split]`` is the prompt and the rest was accepted."""
    sampler = row(config, history[:split], **kwargs)
    logits = mx.array(LOGITS)[None]
    sampler.process(logits)
    for token in history[split:]:
        sampler.accept(mx.array([token], dtype=mx.uint32), None)
    result: Floats32 = np.array(sampler.process(logits))[0]
    return result


@few
@given(
    histories,
    st.builds(
        SamplingConfig,
        repeat_penalty=st.sampled_from([0.5, 1.1, 2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.3, -0.5]),
        presence_penalty=st.sampled_from([0.0, 0.7]),
        repeat_last_n=st.sampled_from([-1, 0, 1, 5, 64]),
    ),
    st.data(),
)
def test_penalties_equal_the_reference_wherever_the_prompt_ends(
    history: list[int], config: SamplingConfig, data: st.DataObject
) -> None:
    expected = reference.penalized(LOGITS.astype(np.float64), history, config)
    whole = processed(config, LOGITS, history)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    split = data.draw(st.integers(1, len(history)))
    assert np.array_equal(stepwise(config, history, split), whole)


def test_a_token_that_is_only_in_the_prompt_is_penalized_from_the_first_step() -> None:
    found = processed(SamplingConfig(repeat_penalty=2.0), LOGITS, [3, 1])
    assert found.tolist() == [2.0, -2.0, 0.0, 2.5, -math.inf, 1.0, 1.0, -3.0]
    assert processed(SamplingConfig(), LOGITS, [3, 1]).tolist() == LOGITS.tolist()


def test_bias_is_added_first_and_can_ban() -> None:
    config = SamplingConfig(logit_bias={3: -math.inf, 0: 1.0}, repeat_penalty=2.0)
    assert processed(config, LOGITS, [0])[[0, 3]].tolist() == [1.5, -math.inf]


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(EngineError, match=r"token 8 .* outside the vocabulary of 8"):
        processed(SamplingConfig(logit_bias={8: 1.0}), LOGITS, [0])
    with pytest.raises(EngineError, match="token 9 "):
        processed(SamplingConfig(repeat_penalty=1.1), LOGITS, [0, 9])


def test_the_dtype_of_the_logits_stays() -> None:
    logits = mx.array(LOGITS)[None].astype(mx.bfloat16)
    assert row(SamplingConfig(repeat_penalty=1.1, dry_multiplier=1.0)).process(logits).dtype == mx.bfloat16


@few
@given(histories)
def test_suffix_matches_equal_their_definition(tokens: list[int]) -> None:
    expected = []
    for stop in range(1, len(tokens)):
        length = 0
        while length < stop and tokens[stop - 1 - length] == tokens[-1 - length]:
            length += 1
        expected.append(length)
    assert suffix_matches(tokens) == expected


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.builds(
        SamplingConfig,
        dry_multiplier=st.just(0.5),
        dry_base=st.sampled_from([1.0, 1.75]),
        dry_allowed_length=st.sampled_from([0, 1, 2, 3]),
        dry_penalty_last_n=st.sampled_from([-1, 0, 4, 7, 64]),
    ),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=3),
    st.data(),
)
def test_dry_equals_the_reference_wherever_the_prompt_ends(
    history: list[int], config: SamplingConfig, breakers: list[list[int]], data: st.DataObject
) -> None:
    expected = LOGITS.astype(np.float64)
    if config.dry:
        expected = reference.dry(expected, history, config, breakers)
    whole = processed(config, LOGITS, history, breakers=breakers)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)
    split = data.draw(st.integers(1, len(history)))
    assert np.array_equal(stepwise(config, history, split, breakers=breakers), whole)


@pytest.mark.parametrize(
    ("repeat", "penalty"),
    [([3], 0.0), ([3, 5], 0.8), ([3, 5, 6], 0.8 * 1.75), ([3, 5, 6, 0], 0.8 * 1.75**2)],
)
def test_dry_acts_from_the_allowed_length_on(repeat: list[int], penalty: float) -> None:
    history = [*repeat, 7, 2, *repeat]
    found = processed(SamplingConfig(dry_multiplier=0.8), LOGITS, history)
    assert LOGITS[7] - found[7] == pytest.approx(penalty, abs=1e-6)
    assert np.count_nonzero(found != LOGITS) == (penalty > 0)


def test_dry_window_0_is_off_and_minus_1_is_all_and_breakers_stop_a_match() -> None:
    history = [3, 5, 6, 7, *[2, 0] * 40, 1, 3, 5, 6]

    def penalty(**options: Any) -> float:
        breakers = options.pop("breakers", ())
        config = SamplingConfig(dry_multiplier=0.8, **options)
        return float(LOGITS[7] - processed(config, LOGITS, history, breakers=breakers)[7])

    assert penalty() == pytest.approx(0.8 * 1.75)
    assert penalty(dry_penalty_last_n=0) == 0
    assert penalty(dry_penalty_last_n=len(history)) == pytest.approx(0.8 * 1.75)
    assert penalty(dry_penalty_last_n=len(history) - 1) == pytest.approx(0.8)
    assert penalty(dry_penalty_last_n=64) == 0
    assert penalty(breakers=[[3]]) == pytest.approx(0.8)
    assert penalty(breakers=[[5]]) == 0
    assert penalty(breakers=[[3, 5]]) == 0
    assert penalty(breakers=[[7]]) == 0


def test_a_long_repeat_does_not_overflow() -> None:
    found = processed(SamplingConfig(dry_multiplier=1.0, dry_base=10.0), LOGITS, [0] * 200)
    assert -math.inf < found[0] < -1e30


@pytest.mark.parametrize("config", [SamplingConfig.seeded(1), SamplingConfig(temperature=1.0, seed=1, mirostat=2)])
def test_taking_back_tokens_restores_everything(config: SamplingConfig) -> None:
    sampler = row(config, [1, 2, 1, 2], breakers=[[5]])
    logits = mx.array(LOGITS)[None]
    before = np.array(sampler.process(logits))
    turn = sampler.turn
    for token in (1, 5, 2):
        sampler.accept(mx.array([token]), mx.array([0.5]) if config.mirostat else None)
    if sampler.processes:
        assert not np.array_equal(np.array(sampler.process(logits)), before)
    sampler.unwind(3)
    assert np.array_equal(np.array(sampler.process(logits)), before)
    assert (sampler.position, sampler.length, sampler.turn) == (0, 4, turn)
    with pytest.raises(EngineError, match="cannot take back 1 sampled tokens; at most 0"):
        sampler.unwind(1)
