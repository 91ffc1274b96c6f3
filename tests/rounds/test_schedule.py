"""Every run once, null arms where they belong, every run at every place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.rounds.schedule import missing, schedule

NAMES = st.lists(st.sampled_from("abcdefg"), min_size=2, max_size=5, unique=True)
ROUNDS = st.integers(1, 12)


def test_the_order_of_two_arms() -> None:
    shown = [slot.label for slot in schedule(["a", "b"], 3, null_every_arm=False)]
    assert shown == ["a", "b", "a-null", "b", "a-null", "a", "a-null", "a", "b"]


@given(NAMES, ROUNDS, st.booleans())
def test_each_round_has_every_arm_and_its_null_arms_once(names: list[str], rounds: int, every: bool) -> None:
    slots = schedule(names, rounds, null_every_arm=every)
    nulls = names if every else names[:1]
    for number in range(rounds):
        of_round = [slot for slot in slots if slot.round == number]
        assert [slot.position for slot in of_round] == list(range(len(names) + len(nulls)))
        assert Counter(slot.label for slot in of_round) == Counter([*names, *(f"{name}-null" for name in nulls)])


@given(NAMES, st.booleans())
def test_over_as_many_rounds_as_places_each_run_is_at_each_place_once(names: list[str], every: bool) -> None:
    places = len(names) + (len(names) if every else 1)
    slots = schedule(names, places, null_every_arm=every)
    for label in {slot.label for slot in slots}:
        assert sorted(slot.position for slot in slots if slot.label == label) == list(range(places))


@given(NAMES, ROUNDS, st.booleans(), st.integers(0, 1000))
def test_what_is_missing_is_the_rest_in_order(names: list[str], rounds: int, every: bool, seed: int) -> None:
    slots = schedule(names, rounds, null_every_arm=every)
    done = [slot for index, slot in enumerate(slots) if (index * 7919 + seed) % 3]
    left = missing(slots, [(slot.round, slot.arm, slot.null) for slot in done])
    assert sorted((*left, *done), key=slots.index) == list(slots)
    assert list(left) == sorted(left, key=slots.index)
