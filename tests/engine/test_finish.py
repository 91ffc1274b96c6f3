"""The rules that end a sequence: each alone, which one is reported of several, and that wrong ones are refused."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine import Finish, LoopRule, StopRules, finish_step, token_budget
from mlxcel_engine.errors import EngineError

QUICK = settings(max_examples=200)
EOS, NONE = frozenset({1, 7}), frozenset[int]()
EAGER = LoopRule(max_period=3, repeats=2, min_tokens=2)


@pytest.mark.parametrize("token", [1, 7])
def test_case_23_every_eos_id_ends_alike(token: int) -> None:
    rules = StopRules(EOS, 10)
    assert finish_step([5, token], 3, rules) == Finish("stop", "eos")
    assert finish_step([token, 5], 3, rules) is None, "only the last token counts"


@pytest.mark.parametrize(
    ("tokens", "stop_string", "rules", "finish"),
    [
        ([4, 4, 1], "x", StopRules(EOS, 3, ("x",), 5, EAGER), Finish("stop", "eos")),
        ([4, 5, 5], "x", StopRules(EOS, 3, ("x",), 5, EAGER), Finish("stop", "stop-string", "x")),
        ([4, 5, 5], None, StopRules(EOS, 3, ("x",), 5, EAGER), Finish("length", "loop")),
        ([4, 5, 6], None, StopRules(EOS, 3, ("x",), 5, EAGER), Finish("length", "max-tokens")),
        ([4, 5, 6], None, StopRules(EOS, 4, ("x",), 5, EAGER), Finish("length", "context")),
        ([4, 5, 6], None, StopRules(EOS, 4, ("x",), 6, EAGER), None),
        ([4, 5, 5], None, StopRules(EOS, 4), None),
    ],
)
def test_the_first_of_several_rules_is_reported(
    tokens: list[int], stop_string: str | None, rules: StopRules, finish: Finish | None
) -> None:
    assert finish_step(tokens, 2, rules, stop_string) == finish


def test_a_finish_is_plain_json() -> None:
    finish = Finish("stop", "stop-string", "<e>")
    assert json.loads(json.dumps(asdict(finish))) == {"reason": "stop", "detail": "stop-string", "stop_string": "<e>"}


@QUICK
@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 60))
@example(8, 1, 9)
@example(8, 5, 9)
def test_the_budget_is_the_number_of_tokens_at_which_the_sequence_ends(prompt: int, limit: int, context: int) -> None:
    rules = StopRules(NONE, limit, context_length=context)
    if limit and prompt >= context:
        with pytest.raises(EngineError, match=f"{prompt} tokens leaves no room in a context of {context}"):
            token_budget(prompt, rules)
        return
    budget = token_budget(prompt, rules)
    ends = [n for n in range(1, budget + 1) if finish_step([0] * n, prompt, rules) is not None]
    assert ends == ([budget] if limit else [])
    assert limit == 0 or prompt + budget <= context


def test_the_budget_without_a_context_is_the_limit() -> None:
    assert token_budget(10**6, StopRules(NONE, 9)) == 9


def loops(tokens: list[int], rule: LoopRule) -> bool:
    """The documented rule, copy by copy."""
    for period in range(1, rule.max_period + 1):
        for copies in range(rule.repeats, len(tokens) // period + 1):
            if copies * period >= rule.min_tokens and tokens[-copies * period :] == tokens[-period:] * copies:
                return True
    return False


@QUICK
@given(
    st.lists(st.integers(0, 1), max_size=8),
    st.lists(st.integers(0, 1), min_size=1, max_size=5),
    st.integers(0, 6),
    st.builds(LoopRule, st.integers(1, 5), st.integers(2, 4), st.integers(1, 12)),
)
def test_a_loop_is_what_the_rule_says(head: list[int], period: list[int], copies: int, rule: LoopRule) -> None:
    tokens = head + period * copies
    assert rule.fires(tokens) == loops(tokens, rule)


@pytest.mark.parametrize(
    ("tokens", "fires"),
    [
        ([9, *[1, 2, 3] * 4], True),
        ([9, *[1, 2, 3] * 3, 1, 2], False),  # three copies and a part
        ([*[1, 2, 3] * 4, 9], False),  # over already
        ([*[1, 2, 3] * 2, 1, 2, 4, *[1, 2, 3]], False),  # one token differs
        ([5] * 11, False),  # one period of 1, below min_tokens
        ([5] * 12, True),
        ([1, 2, 3, 4, 5] * 4, False),  # longer than max_period
        ([], False),
    ],
)
def test_loops_and_near_loops(tokens: list[int], fires: bool) -> None:
    assert LoopRule(max_period=4, repeats=4, min_tokens=12).fires(tokens) is fires


def test_loop_detection_is_off_by_default_and_patient_when_on() -> None:
    assert StopRules(NONE, 5).loop is None
    assert finish_step([3] * 1000, 1, StopRules(NONE, 2000)) is None
    assert finish_step([3] * 63, 1, StopRules(NONE, 2000, loop=LoopRule())) is None
    assert finish_step([3] * 64, 1, StopRules(NONE, 2000, loop=LoopRule())) == Finish("length", "loop")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": -1}, "max_tokens -1"),
        ({"stop_strings": ("a", "")}, "empty stop string"),
        ({"context_length": 0}, "context_length 0"),
    ],
)
def test_wrong_rules_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        StopRules(**{"eos_ids": NONE, "max_tokens": 4, **options})


@pytest.mark.parametrize("options", [{"max_period": 0}, {"repeats": 1}, {"min_tokens": 0}])
def test_a_wrong_loop_rule_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(EngineError, match=next(iter(options))):
        LoopRule(**options)


def test_the_rules_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        StopRules(NONE, 4).max_tokens = 5  # type: ignore[misc]  # frozen: the type checker refuses it too
    with pytest.raises(FrozenInstanceError):
        LoopRule().repeats = 5  # type: ignore[misc]  # frozen: the type checker refuses it too
