"""The block allocator against a plain model of who holds what."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mlxcel_engine.engine.kv.blocks import BlockAllocator, Claim, OutOfBlocksError
from mlxcel_engine.errors import EngineError


def test_a_sequence_grows_in_a_row_and_a_new_one_stays_out_of_its_way() -> None:
    allocator = BlockAllocator(16)
    first, second = allocator.claim(6), allocator.claim(6)
    one, two = allocator.take(2, None, first), allocator.take(2, None, second)
    for _ in range(4):
        one += allocator.take(1, one[-1], first)
        two += allocator.take(1, two[-1], second)
    assert one == list(range(one[0], one[0] + 6))
    assert two == list(range(two[0], two[0] + 6))
    assert not set(one) & set(two)


def test_claims_hold_nothing_and_are_overrun_when_nothing_else_is_left() -> None:
    allocator = BlockAllocator(8)
    kept = allocator.claim(4)
    greedy = allocator.claim(4)
    taken = allocator.take(8, None, greedy)
    assert sorted(taken) == list(range(8))
    with pytest.raises(OutOfBlocksError, match="1 KV blocks needed, 0 of 8 free"):
        allocator.take(1, None, kept)


def test_a_claim_takes_the_tightest_stretch_that_fits_or_the_longest() -> None:
    allocator = BlockAllocator(12)
    held = allocator.take(12, None, Claim(0, 0))
    allocator.release([*held[1:4], *held[5:10]])  # stretches of 3 and 5
    assert allocator.claim(3) == Claim(1, 4)
    assert allocator.claim(4) == Claim(5, 9)
    assert allocator.claim(4) == Claim(9, 10)
    assert allocator.claim(1) == Claim(0, 0)


@pytest.mark.parametrize("call", ["share", "release"])
def test_a_free_block_cannot_be_shared_or_released(call: str) -> None:
    allocator = BlockAllocator(4)
    with pytest.raises(EngineError, match="block 2"):
        getattr(allocator, call)([2])


def test_broken_books_are_found() -> None:
    """Negative controls of the integrity check."""
    allocator = BlockAllocator(4)
    blocks = allocator.take(2, None, Claim(0, 0))
    allocator.check_integrity([blocks])
    for tables, said in (([], "counted 1 times, held 0"), ([blocks, blocks], "held 2"), ([blocks * 2], "twice")):
        with pytest.raises(EngineError, match=said):
            allocator.check_integrity(tables)
    allocator._free.append(blocks[0])
    with pytest.raises(EngineError, match="are not 4"):
        allocator.check_integrity([blocks])


TIMES = st.integers(4, 8)
RANDOM = st.randoms(use_true_random=True)  # a seed: hypothesis bounds what an example draws, at some 600 single steps


class Books(RuleBasedStateMachine):
    """Tables that take, share, release and grow; each block's holders are known. A rule makes some steps of a kind."""

    lengths: ClassVar[list[int]] = []

    @initialize(total=st.integers(0, 40))
    def begin(self, total: int) -> None:
        self.allocator = BlockAllocator(total)
        self.tables: list[list[int]] = []
        self.claims: list[Claim] = []
        self.steps = 0

    def check(self) -> None:
        self.allocator.check_integrity(self.tables)
        held = {block for table in self.tables for block in table}
        assert self.allocator.free == self.allocator.total - len(held)
        self.steps += 1

    @rule(times=TIMES, random=RANDOM)
    def open(self, times: int, random: Random) -> None:
        for _ in range(times):
            length = random.randint(0, 12)
            claim = self.allocator.claim(length)
            assert claim.stop - claim.start <= length
            assert not any(self.allocator.count(block) for block in range(claim.start, claim.stop))
            self.claims.append(claim)
            self.tables.append([])
            self.check()

    @precondition(lambda self: self.tables)
    @rule(times=TIMES, random=RANDOM)
    def take(self, times: int, random: Random) -> None:
        for _ in range(times):
            index, number = random.randrange(len(self.tables)), random.randint(0, 6)
            self.take_for(self.tables[index], self.claims[index], number)
            self.check()

    def take_for(self, table: list[int], claim: Claim, number: int) -> None:
        free, last = self.allocator.free, table[-1] if table else None
        if number > free:
            with pytest.raises(OutOfBlocksError):
                self.allocator.take(number, last, claim)
            assert self.allocator.free == free
            return
        taken = self.allocator.take(number, last, claim)
        assert len(set(taken)) == number
        assert all(self.allocator.count(block) == 1 for block in taken)
        table += taken

    @precondition(lambda self: self.tables)
    @rule(times=TIMES, random=RANDOM)
    def share(self, times: int, random: Random) -> None:
        for _ in range(times):
            source = random.choice(self.tables)
            prefix = source[: random.randint(0, len(source))]
            self.allocator.share(prefix)
            self.tables.append(list(prefix))
            self.claims.append(self.allocator.claim(1))
            self.check()

    @precondition(lambda self: self.tables)
    @rule(times=TIMES, random=RANDOM)
    def close(self, times: int, random: Random) -> None:
        for _ in range(min(times, len(self.tables))):
            index = random.randrange(len(self.tables))
            self.allocator.release(self.tables.pop(index))
            self.allocator.unclaim(self.claims.pop(index))
            self.check()

    @rule(times=TIMES, random=RANDOM)
    def grow(self, times: int, random: Random) -> None:
        for _ in range(times):
            total = self.allocator.total
            self.allocator.grow(min(total + random.randint(0, 2), 80))
            self.check()

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            self.lengths.append(self.steps)


def test_the_books_stay_right_over_thousands_of_steps() -> None:
    Books.lengths.clear()
    run_state_machine_as_test(
        Books,
        settings=settings(max_examples=4, stateful_step_count=2000, suppress_health_check=list(HealthCheck)),
    )
    assert sorted(Books.lengths)[-2] >= 2000
