from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mlxcel_engine.engine.sampling import GREEDY, BreakerResolver, SamplingConfig, resolve_sampling
from mlxcel_engine.errors import UsageError
from mlxcel_engine.loader.synthetic import byte_tokenizer

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", 1e7),
    ("repeat_penalty", 1e-7),
    ("temperature", math.inf),
    ("temperature", "warm"),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_p", 1.1),
    ("top_p", -0.1),
    ("min_p", 2),
    ("typical_p", -1),
    ("xtc_probability", 1.01),
    ("xtc_threshold", 0.51),
    ("repeat_penalty", 0),
    ("frequency_penalty", math.inf),
    ("presence_penalty", None),
    ("repeat_last_n", -2),
    ("dry_multiplier", -1),
    ("dry_base", 0.9),
    ("dry_allowed_length", -1),
    ("dry_allowed_length", 2**31),
    ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", [""]),
    ("dry_sequence_breakers", "\n"),
    ("dynatemp_range", -1),
    ("dynatemp_exponent", -1),
    ("mirostat", 3),
    ("mirostat_tau", 0),
    ("mirostat_eta", 0),
    ("min_keep", -1),
    ("min_keep", 2**31),
    ("seed", -1),
    ("seed", 2**64),
    ("logit_bias", [1]),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_named_with_its_range_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingConfig.parse({name: value})
    message = str(caught.value)
    assert "\n" not in message
    assert f"sampling {name}" in message
    assert "(range: " in message


@pytest.mark.parametrize("bias", [{"1": 0}, {"-1": 1.0}, {"x": 1.0}, {"1": math.nan}, {"1": math.inf}, {"1": 1e7}])
def test_a_bias_that_is_none_is_refused(bias: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="logit_bias"):
        SamplingConfig.parse({"logit_bias": bias})


def test_a_temperature_that_float32_cannot_divide_by_is_refused() -> None:
    with pytest.raises(UsageError, match="temperature=1e-07 is not in its range: 0 for greedy, or 1e-6 to 1e6"):
        SamplingConfig.parse({"temperature": 1e-7})


def test_what_is_no_object_is_refused() -> None:
    not_an_object: Any = [1]
    with pytest.raises(UsageError, match="sampling: Input should be a valid dictionary"):
        SamplingConfig.parse(not_an_object)


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'repetition_penalty' is not known; known: .*repeat_penalty"):
        SamplingConfig.parse({"repetition_penalty": 1.1})


NO_EFFECT: list[dict[str, Any]] = [
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"typical_p": 0.9},
    {"xtc_probability": 0.5},
    {"dynatemp_range": 0.5},
    {"mirostat": 2},
    {"temperature": 1.0, "mirostat": 2, "top_k": 40},
    {"temperature": 1.0, "mirostat": 1, "dynatemp_range": 0.2},
    {"temperature": 1.0, "mirostat_tau": 3.0},
    {"temperature": 1.0, "xtc_threshold": 0.2},
    {"temperature": 1.0, "dynatemp_exponent": 2.0},
    {"temperature": 1.0, "min_keep": 2},
    {"temperature": 1.0, "min_keep": 2, "top_k": 40},
    {"repeat_last_n": 0},
    {"dry_base": 2.0},
    {"dry_penalty_last_n": 10},
    {"dry_multiplier": 1.0, "dry_penalty_last_n": 2},
    {"dry_multiplier": 1.0, "dry_penalty_last_n": 1, "dry_allowed_length": 0},
]


@pytest.mark.parametrize("options", NO_EFFECT)
def test_an_option_without_effect_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="has no effect"):
        SamplingConfig.parse(options)


def test_the_default_is_greedy_with_nothing_else_on() -> None:
    config = SamplingConfig()
    assert (config.order, config.greedy, GREEDY.config) == (("greedy",), True, config)
    assert config.effective() == {"order": ["greedy"], "repeat_last_n": 0, "dry_penalty_last_n": 0, "seed": None}


def test_the_seeded_case_says_its_order_windows_and_seed() -> None:
    config = SamplingConfig.seeded(1234)
    assert config.effective() == {
        "order": ["penalties", "dry", "top_k", "top_p", "min_p", "temperature"],
        "repeat_last_n": 64,
        "dry_penalty_last_n": 64,
        "seed": 1234,
    }
    assert (config.repeat_penalty, config.dry_base, config.dry_allowed_length) == (1.1, 1.75, 2)
    assert config.dry_sequence_breakers == ("\n", ":", '"', "*")


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(),
        SamplingConfig.seeded(0),
        SamplingConfig(temperature=1.0, mirostat=1, mirostat_tau=3.0, seed=2**64 - 1),
        SamplingConfig(logit_bias={3: -math.inf, 1: 2.5}, dry_multiplier=1.0, dry_sequence_breakers=()),
    ],
)
def test_a_dumped_config_parses_to_itself(config: SamplingConfig) -> None:
    assert SamplingConfig.parse(json.loads(json.dumps(config.model_dump()))) == config


def test_json_false_bans_a_token() -> None:
    assert SamplingConfig.parse({"logit_bias": {"7": False}}).logit_bias == {7: -math.inf}


def test_a_negative_top_k_and_a_window_of_0_are_off() -> None:
    assert SamplingConfig(temperature=1.0, top_k=-1).order == ("temperature",)
    config = SamplingConfig(repeat_penalty=1.1, repeat_last_n=0, dry_multiplier=1.0, dry_penalty_last_n=0)
    assert config.order == ("greedy",)


def test_an_unseeded_draw_gets_a_seed_that_is_recorded_and_seed_0_is_a_seed() -> None:
    config = SamplingConfig(temperature=1.0)
    seeds = {resolve_sampling(config).config.seed for _ in range(8)}
    assert len(seeds) == 8
    assert None not in seeds
    assert resolve_sampling(SamplingConfig(temperature=1.0, seed=0)).config.effective()["seed"] == 0
    assert resolve_sampling(SamplingConfig()).config.seed is None


def test_breakers_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(UsageError, match="dry_sequence_breakers need a tokenizer"):
        resolve_sampling(SamplingConfig.seeded(1))


class Letters:
    """One token a piece of text."""

    TEXTS = ("a", "\n", "b\n\n", "a:", "b", ":", "ab", "x a", "abc", "ca")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [self.TEXTS.index(letter) for letter in text]

    def decode(self, token_ids: list[int], **kwargs: Any) -> str:
        return "".join(self.TEXTS[i] for i in token_ids)


def test_the_default_breakers_with_a_real_tokenizer() -> None:
    tokenizer = byte_tokenizer()
    sampling = resolve_sampling(SamplingConfig.seeded(1), BreakerResolver(tokenizer, len(tokenizer)), (2,))
    texts = {tokenizer.decode([token]) for token in sampling.breakers.singles}
    assert texts == {"\n", ":", '"', "*"}
    assert sampling.eos_ids == {2}


def test_breakers_are_tokens_that_hold_them_and_heads_that_begin_them() -> None:
    resolve = BreakerResolver(Letters(), len(Letters.TEXTS))
    assert resolve(("\n", ":")).singles == {1, 2, 3, 5}
    assert resolve(("\n", ":")).heads == (((), frozenset({1, 2, 3, 5})),)
    assert dict(resolve(("ab",)).heads) == {(): {6, 8}, (4,): {0, 7, 9}}
    assert resolve(("ab",)) is resolve(("ab",))
    assert resolve(()).heads == ()
