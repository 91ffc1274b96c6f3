"""Which run comes when: every arm once a round, null arms after them, the order rotated by one place a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NULL_SUFFIX = "-null"


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


def schedule(arms: Sequence[str], rounds: int, *, null_every_arm: bool) -> tuple[Slot, ...]:
    """Order every run of ``rounds`` rounds over ``arms`` (distinct names, the reference first).

    A round is the arms, then the null arm of the first one (or of each). It begins one place further on than the
    round before, so that over as many rounds as it has places each run has been at each place once: a drift
    inside the rounds then favours nobody.
    """
    nulls = arms if null_every_arm else arms[:1]
    places = [*((arm, False) for arm in arms), *((arm, True) for arm in nulls)]
    return tuple(
        Slot(number, position, *places[(number + position) % len(places)])
        for number in range(rounds)
        for position in range(len(places))
    )


def missing(slots: Sequence[Slot], done: Sequence[tuple[int, str, bool]]) -> tuple[Slot, ...]:
    """The slots that are not among ``done`` (round, arm, null), in order."""
    made = set(done)
    return tuple(slot for slot in slots if (slot.round, slot.arm, slot.null) not in made)
