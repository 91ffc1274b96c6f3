"""The tick policy alone, over a counted room: what fits, who goes first, who gives way, and that everyone ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.kv.blocks import blocks_for
from mlxcel_engine.errors import EngineError
from mlxcel_engine.scheduler.policy import Rank, Seat, Tick, TickPolicy, new_blocks, rank

TICKS = 16  # that a step of priority is worth
CHUNK = 32


@dataclass(eq=False)
class Counted(Seat):
    """A request beside what became of it."""

    priority: int = 0
    arrived: int = 0
    entered: int = 0
    left: int = 0
    decoded: int = 0
    waited: list[int] = field(default_factory=list)


@dataclass
class CountedRoom:
    """``total`` blocks, of which ``kept`` belong to prefixes that can be given up."""

    total: int | None
    kept: int = 0
    seats: list[Counted] = field(default_factory=list)

    def free(self) -> int | None:
        if self.total is None:
            return None
        return self.total - self.kept - sum(blocks_for(seat.held) for seat in self.seats)

    def reclaim(self) -> bool:
        if not self.kept:
            return False
        self.kept -= 1
        return True

    def cost(self, seat: Counted) -> int:
        return blocks_for(max(seat.held, seat.target) + 1)

    def next_piece(self, seat: Counted) -> int:
        return min(CHUNK, seat.target - seat.held)

    def enter(self, seat: Counted) -> None:
        self.seats.append(seat)
        seat.entered += 1

    def leave(self, seat: Counted) -> None:
        self.seats.remove(seat)
        seat.left += 1


@dataclass(frozen=True)
class Ask:
    prompt: int
    tokens: int
    priority: int = 0
    after: int = 0

    def seat(self, serial: int, tick: int) -> Counted:
        place = rank(self.priority, tick, serial, TICKS)
        return Counted(place, self.prompt - 1, self.tokens, priority=self.priority, arrived=tick)


def run_tick(policy: TickPolicy[Counted], room: CountedRoom) -> Tick[Counted]:
    """One tick with all that must hold in it."""
    before = {seat: seat.left for seat in policy.live}
    waiting = list(policy.waiting)
    tick = policy.schedule()
    assert room.seats == policy.live
    assert len(policy.live) <= policy.max_batch
    moved = [seat for seat, left in before.items() if seat.left > left]
    assert all(seat in policy.waiting for seat in moved), "moved out and back in one tick"
    stayed = [seat for seat in before if seat not in moved]
    assert all(one.rank < other.rank for one in stayed for other in moved), "a better rank gave way"
    admitted = [seat for seat in waiting if seat in policy.live]
    assert admitted == waiting[: len(admitted)], "somebody was passed over"
    assert policy.waiting == sorted(policy.waiting, key=lambda seat: seat.rank), "out of order"
    assert set(tick.decode) == {seat for seat in policy.live if seat.steps}
    unready = [seat for seat in policy.live if seat.prefilling]
    assert tick.prefill is (min(unready, key=lambda seat: seat.rank) if unready else None)
    for seat in tick.decode:
        seat.held, seat.steps_left, seat.decoded = seat.held + 1, seat.steps_left - 1, seat.decoded + 1
    if tick.prefill:
        tick.prefill.held += room.next_piece(tick.prefill)
    free = room.free()
    assert free is None or free >= 0, "the tick did not fit"
    return tick


def serve(
    asks: list[Ask], total: int | None, batch: int, kept: int = 0, kind: type[TickPolicy[Counted]] = TickPolicy
) -> list[Counted]:
    """Run requests to their ends; every tick must do something."""
    room = CountedRoom(total, kept)
    policy = kind(room, batch)
    seats: list[Counted] = []
    coming = sorted(asks, key=lambda ask: ask.after)
    for _ in range(sum(ask.prompt + 2 * ask.tokens for ask in asks) * 4 + max(ask.after for ask in asks) + 10):
        while coming and coming[0].after <= policy.tick:
            seats.append(coming.pop(0).seat(len(seats), policy.tick))
            policy.wait(seats[-1])
        if not (policy.live or policy.waiting):
            if not coming:
                break
            policy.tick += 1
            continue
        tick = run_tick(policy, room)
        assert tick.decode or tick.prefill, "a tick in which nothing happens"
        for seat in [seat for seat in policy.live if seat.steps_left == 0]:
            policy.remove(seat)
            room.seats.remove(seat)
    assert not policy.live, "some never ended"
    assert not policy.waiting
    assert not coming
    return seats


def asks(total: int) -> st.SearchStrategy[list[Ask]]:
    most = total * 16
    ask = st.builds(
        lambda prompt, tokens, priority, after: Ask(min(prompt, most - tokens), tokens, priority, after),
        st.integers(1, 200),
        st.integers(1, 15),
        st.integers(-2, 2),
        st.integers(0, 60),
    )
    return st.lists(ask, min_size=1, max_size=12)


@settings(max_examples=300)
@given(total=st.integers(1, 20), batch=st.integers(1, 5), kept=st.integers(0, 20), data=st.data())
def test_every_workload_ends_whatever_the_room(total: int, batch: int, kept: int, data: st.DataObject) -> None:
    asked = data.draw(asks(total))
    seats = serve(asked, total, batch, min(kept, total))
    assert sorted(seat.decoded for seat in seats) == sorted(ask.tokens for ask in asked)
    assert all(seat.entered == seat.left + 1 for seat in seats)


@settings(max_examples=50)
@given(asked=asks(1000), batch=st.integers(1, 5))
def test_without_a_bound_nobody_is_moved_out(asked: list[Ask], batch: int) -> None:
    assert all(seat.left == 0 for seat in serve(asked, None, batch))


@given(
    one=st.tuples(st.integers(-9, 9), st.integers(0, 10**6)), other=st.tuples(st.integers(-9, 9), st.integers(0, 10**6))
)
def test_priority_is_worth_its_ticks_and_no_more(one: tuple[int, int], other: tuple[int, int]) -> None:
    first, second = (rank(priority, tick, 0, TICKS) for priority, tick in (one, other))
    if other[1] - one[1] > (other[0] - one[0]) * TICKS:
        assert first < second


def test_a_low_request_is_not_starved_by_a_stream_of_high_ones() -> None:
    stream = [Ask(16, 4, priority=1, after=i) for i in range(100)]
    seats = serve([Ask(16, 4, priority=0, after=2), *stream], total=2, batch=1)
    low = next(seat for seat in seats if seat.priority == 0)
    before = [seat for seat in seats if seat.rank < low.rank]
    assert 0 < len(before) <= TICKS + 3


def test_the_newest_row_of_the_lowest_priority_gives_way() -> None:
    room = CountedRoom(8)
    policy: TickPolicy[Counted] = TickPolicy(room, 4)
    seats = [Ask(31, 9, priority).seat(serial, 0) for serial, priority in enumerate((0, 1, 0))]
    for seat in seats:
        policy.wait(seat)
    while not any(seat.left for seat in seats):
        run_tick(policy, room)
    assert [seat.left for seat in seats] == [0, 0, 1]


def test_kept_prefixes_are_given_up_before_a_row_is() -> None:
    seats = serve([Ask(16, 15, after=0), Ask(16, 15, after=0)], total=6, batch=2, kept=3)
    assert [seat.left for seat in seats] == [0, 0]


def test_one_prompt_is_prefilled_at_a_time_and_decoding_goes_on_beside_it() -> None:
    room = CountedRoom(None)
    policy: TickPolicy[Counted] = TickPolicy(room, 4)
    for serial, prompt in enumerate((1, 4 * CHUNK + 1, 2)):
        policy.wait(Ask(prompt, 50).seat(serial, 0))
    ticks = [run_tick(policy, room) for _ in range(7)]
    assert [len(tick.decode) for tick in ticks] == [1, 1, 1, 1, 2, 3, 3]
    assert [tick.prefill is not None for tick in ticks] == [True] * 5 + [False] * 2
    assert all(one.decode[0] is two.decode[0] for one, two in pairwise(ticks))


def test_a_row_that_can_never_fit_is_an_error_and_no_endless_loop() -> None:
    policy: TickPolicy[Counted] = TickPolicy(CountedRoom(1), 4)
    policy.wait(Ask(40, 1).seat(0, 0))
    with pytest.raises(EngineError, match="more than there are"):
        policy.schedule()


def test_new_blocks_are_counted_at_their_edges() -> None:
    assert [new_blocks(held, 1) for held in (0, 1, 15, 16, 17, 31, 32)] == [1, 0, 0, 1, 0, 0, 1]
    assert Rank(1, 0) < Rank(1, 1) < Rank(2, 0)


class PassesOver(TickPolicy[Counted]):
    """Negative control: prefers the shortest request."""

    def wait(self, seat: Counted) -> None:
        super().wait(seat)
        self.waiting.sort(key=lambda seat: seat.target)


class MovesOutTheFirst(TickPolicy[Counted]):
    """Negative control: the best rank gives way."""

    def _move_out(self, seat: Counted) -> None:
        super()._move_out(min(self.live, key=lambda seat: seat.rank))


@pytest.mark.parametrize("broken", [PassesOver, MovesOutTheFirst])
def test_a_broken_policy_is_found(broken: type[TickPolicy[Counted]]) -> None:
    asked = [Ask(prompt, 40) for prompt in (40, 31, 20, 31)]
    assert any(seat.left for seat in serve(asked, 8, 4))
    with pytest.raises(AssertionError):
        serve(asked, 8, 4, kind=broken)
