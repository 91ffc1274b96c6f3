"""Which run comes when: every arm, and the null arm of the first or of each, once a round.

The order is balanced for place and neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.records.rounds import RoundsConfig, RunOrder

NULL_SUFFIX = "-null"
MOST_ROUNDS = 1000
ORDER: RunOrder = "williams"


@dataclass(frozen=True)
class Slot:
    """One run to be made: ``position`` within its round, both counted from 0. ``null`` repeats ``arm``'s flags."""

    round: int
    position: int
    arm: str
    null: bool

    @property
    def label(self) -> str:
        """The name that tables show: ``arm``, or ``arm-null``."""
        return label(self.arm, self.null)


def label(arm: str, null: bool) -> str:
    """The name of an arm, or of its null arm."""
    return arm + NULL_SUFFIX if null else arm


def slots_of(config: RoundsConfig) -> tuple[Slot, ...]:
    """Every run of ``config``, in order."""
    return schedule([arm.name for arm in config.arms], config.rounds, null_every_arm=config.null_every_arm)


def schedule(arms: Sequence[str], rounds: int, *, null_every_arm: bool) -> tuple[Slot, ...]:
    """Order every run of ``rounds`` rounds over ``arms`` (distinct names, the reference first).

    A round is the arms and the null arm of the first one (or of each), k places in all. Every second round is the one
    before it backwards, so that over such a pair each run has the same mean place and a drift inside the rounds
    favours nobody. Over 2k rounds each run is at each place twice, and comes twice right after each other run of its
    round: what a run leaves behind (heat, caches) meets all alike. These are the rows of Williams' design, balanced
    for first-order carry-over (E. J. Williams, "Experimental designs balanced for the estimation of residual effects
    of treatments", Australian Journal of Scientific Research A 2, 1949), each followed by its reverse.
    """
    nulls = arms if null_every_arm else arms[:1]
    places = [*((arm, False) for arm in arms), *((arm, True) for arm in nulls)]
    return tuple(
        Slot(number, position, *places[index])
        for number in range(rounds)
        for position, index in enumerate(_order(number, len(places)))
    )


def _order(number: int, k: int) -> list[int]:
    """The order of k runs in round ``number``: 0, 1, k-1, 2, k-2, ... moved on by one every second round."""
    zigzag = [(position + 1) // 2 * (1 if position % 2 else -1) for position in range(k)]
    row = [(step + number // 2) % k for step in zigzag]
    return row[::-1] if number % 2 else row


def missing(slots: Sequence[Slot], done: Sequence[tuple[int, str, bool]]) -> tuple[Slot, ...]:
    """The slots that are not among ``done`` (round, arm, null), in order."""
    made = set(done)
    return tuple(slot for slot in slots if (slot.round, slot.arm, slot.null) not in made)
