"""The block allocator against a plain model of who holds what."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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


class Books(RuleBasedStateMachine):
    """Tables that take, share, release and grow; each block's holders are known."""

    @initialize(total=st.integers(0, 40))
    def begin(self, total: int) -> None:
        self.allocator = BlockAllocator(total)
        self.tables: list[list[int]] = []
        self.claims: list[Claim] = []

    @rule(length=st.integers(0, 12))
    def open(self, length: int) -> None:
        claim = self.allocator.claim(length)
        assert claim.stop - claim.start <= length
        assert not any(self.allocator.count(block) for block in range(claim.start, claim.stop))
        self.claims.append(claim)
        self.tables.append([])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), number=st.integers(0, 6))
    def take(self, data: st.DataObject, number: int) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, free = self.tables[index], self.allocator.free
        if number > free:
            with pytest.raises(OutOfBlocksError):
                self.allocator.take(number, table[-1] if table else None, self.claims[index])
            assert self.allocator.free == free
            return
        taken = self.allocator.take(number, table[-1] if table else None, self.claims[index])
        assert len(set(taken)) == number
        assert all(self.allocator.count(block) == 1 for block in taken)
        table += taken

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source = self.tables[data.draw(st.integers(0, len(self.tables) - 1))]
        prefix = source[: data.draw(st.integers(0, len(source)))]
        self.allocator.share(prefix)
        self.tables.append(list(prefix))
        self.claims.append(self.allocator.claim(1))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.allocator.release(self.tables.pop(index))
        self.allocator.unclaim(self.claims.pop(index))

    @rule(extra=st.integers(0, 5))
    def grow(self, extra: int) -> None:
        total = self.allocator.total
        if total < 80:
            self.allocator.grow(total + extra)

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.check_integrity(self.tables)
            held = {block for table in self.tables for block in table}
            assert self.allocator.free == self.allocator.total - len(held)


Books.TestCase.settings = settings(
    max_examples=4, stateful_step_count=2000, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBooks = Books.TestCase
