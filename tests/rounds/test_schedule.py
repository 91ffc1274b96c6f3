"""Every run once, null arms where they belong, every run at every place and after every other."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.rounds.schedule import missing, schedule, slots_of
from tests.rounds.fakes import config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.rounds.schedule import Slot

NAMES = st.lists(st.sampled_from("abcdefg"), min_size=2, max_size=5, unique=True)
ROUNDS = st.integers(1, 12)


def places_of(names: Sequence[str], every: bool) -> int:
    return len(names) + (len(names) if every else 1)


def neighbours(slots: Sequence[Slot]) -> Counter[tuple[str, str]]:
    """How often each run comes right after another one in its round."""
    return Counter((one.label, other.label) for one, other in pairwise(slots) if one.round == other.round)


def test_the_order_of_two_arms() -> None:
    slots = schedule(["a", "b"], 6, null_every_arm=False)
    assert [" ".join(slot.label for slot in slots if slot.round == number) for number in range(6)] == [
        "a b a-null",
        "a-null b a",
        "b a-null a",
        "a a-null b",
        "a-null a b",
        "b a a-null",
    ]


@given(NAMES, ROUNDS, st.booleans())
def test_each_round_has_every_arm_and_its_null_arms_once(names: list[str], rounds: int, every: bool) -> None:
    slots = schedule(names, rounds, null_every_arm=every)
    nulls = names if every else names[:1]
    for number in range(rounds):
        of_round = [slot for slot in slots if slot.round == number]
        assert [slot.position for slot in of_round] == list(range(len(names) + len(nulls)))
        assert Counter(slot.label for slot in of_round) == Counter([*names, *(f"{name}-null" for name in nulls)])


@given(NAMES, st.booleans())
def test_over_twice_as_many_rounds_as_places_place_and_neighbours_are_balanced(names: list[str], every: bool) -> None:
    k = places_of(names, every)
    slots = schedule(names, 2 * k, null_every_arm=every)
    labels = {slot.label for slot in slots}
    assert Counter((slot.label, slot.position) for slot in slots) == {
        (name, at): 2 for name in labels for at in range(k)
    }
    assert neighbours(slots) == {(one, other): 2 for one in labels for other in labels if one != other}


@given(NAMES, st.integers(1, 40), st.booleans())
def test_over_any_number_of_rounds_they_are_nearly_so(names: list[str], rounds: int, every: bool) -> None:
    k = places_of(names, every)
    slots = schedule(names, rounds, null_every_arm=every)
    labels = {slot.label for slot in slots}
    at_place = Counter((slot.label, slot.position) for slot in slots)
    after = neighbours(slots)
    for name in labels:
        for position in range(k):
            assert abs(at_place[name, position] - rounds / k) <= 2
        for other in labels - {name}:
            assert abs(after[name, other] - rounds / k) <= 2
    for first in range(0, rounds - 1, 2):
        places = {
            name: sum(s.position for s in slots if s.label == name and s.round // 2 == first // 2) for name in labels
        }
        assert set(places.values()) == {k - 1}


def test_a_plain_rotation_is_not_balanced() -> None:
    """The negative control: there b comes right after a in two rounds of three, and never right after a-null."""
    labels = ["a", "b", "a-null"]
    rotated = [[labels[(number + at) % 3] for at in range(3)] for number in range(6)]
    after = Counter(pair for order in rotated for pair in pairwise(order))
    assert (after["a", "b"], after["a-null", "b"]) == (4, 0)


@given(NAMES, ROUNDS, st.booleans(), st.integers(0, 1000))
def test_what_is_missing_is_the_rest_in_order(names: list[str], rounds: int, every: bool, seed: int) -> None:
    slots = slots_of(config(*names, rounds=rounds, null_every_arm=every))
    assert slots == schedule(names, rounds, null_every_arm=every)  # the same each time
    done = [slot for index, slot in enumerate(slots) if (index * 7919 + seed) % 3]
    left = missing(slots, [(slot.round, slot.arm, slot.null) for slot in done])
    assert sorted((*left, *done), key=slots.index) == list(slots)
    assert list(left) == sorted(left, key=slots.index)
