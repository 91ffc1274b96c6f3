"""The block allocator: which blocks are free, who shares which, and where a sequence can grow in place. No MLX."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


BLOCK_TOKENS: Final = 16


def blocks_for(tokens: int) -> int:
    """Blocks that ``tokens`` tokens fill, the last one maybe in part."""
    return -(-tokens // BLOCK_TOKENS)


class OutOfBlocksError(EngineError):
    """No free block is left; nothing was changed."""


@dataclass(frozen=True)
class Claim:
    """Blocks ``[start, stop)`` that others stay out of while they find room elsewhere; it holds nothing."""

    start: int
    stop: int


class BlockAllocator:
    """Hands out blocks ``0 .. total-1``, each with a reference count.

    A block is free (count 0) or held (count 1 or more). Sequences attend fastest over consecutive blocks, so a
    block is taken right behind the sequence's last one where that is free, and a new sequence is placed where its
    expected length fits between the claims of the others.
    """

    def __init__(self, total: int) -> None:
        self._counts = [0] * total
        self._free = list(range(total))  # sorted
        self._claims: list[Claim] = []

    @property
    def total(self) -> int:
        """Blocks there are."""
        return len(self._counts)

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def unclaimed(self) -> int:
        """Blocks that nobody holds and nobody waits for."""
        return sum(stretch.stop - stretch.start for stretch in self._stretches())

    def count(self, block: int) -> int:
        """How many hold ``block``."""
        return self._counts[block]

    def claim(self, length: int) -> Claim:
        """Choose where ``length`` blocks would fit in a row, and keep others away from it; may be shorter, or empty.

        First the shortest stretch that is free and unclaimed and long enough, else the longest.
        """
        stretches = list(self._stretches())
        fitting = [stretch for stretch in stretches if stretch.stop - stretch.start >= length]
        if fitting:
            best = min(fitting, key=lambda stretch: stretch.stop - stretch.start)
            chosen = Claim(best.start, best.start + length)
        else:
            chosen = max(stretches, key=lambda stretch: stretch.stop - stretch.start, default=Claim(0, 0))
        self._claims.append(chosen)
        return chosen

    def unclaim(self, claim: Claim) -> None:
        """Forget a claim. Raises ValueError for an unknown one."""
        self._claims.remove(claim)

    def take(self, number: int, last: int | None, claim: Claim) -> list[int]:
        """Hold ``number`` free blocks: behind ``last``, else in the claim, else unclaimed ones, else any.

        Raises:
            OutOfBlocksError: fewer are free.

        """
        if number > self.free:
            raise OutOfBlocksError(f"{number} KV blocks needed, {self.free} of {self.total} free")
        taken: list[int] = []
        for _ in range(number):
            last = self._best(last, claim)
            del self._free[bisect_left(self._free, last)]
            self._counts[last] = 1
            taken.append(last)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that are held already once more.

        Raises:
            EngineError: a block is free.

        """
        blocks = list(blocks)
        for block in blocks:
            if self._counts[block] < 1:
                raise EngineError(f"KV block {block} is free and cannot be shared")
        for block in blocks:
            self._counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks; the last holder frees them.

        Raises:
            EngineError: a block is free.

        """
        for block in blocks:
            if self._counts[block] < 1:
                raise EngineError(f"KV block {block} is released more often than held")
            self._counts[block] -= 1
            if not self._counts[block]:
                insort(self._free, block)

    def grow(self, total: int) -> None:
        """Add free blocks up to ``total``."""
        self._free.extend(range(self.total, total))
        self._counts.extend([0] * (total - self.total))

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Check the books against the block tables of everyone who holds blocks.

        Raises:
            EngineError: free + held is not total, a block stands twice in one table, or a count is not the number
                of tables that hold it.

        """
        holders: Counter[int] = Counter()
        for table in tables:
            if len(set(table)) != len(table):
                raise EngineError(f"a block table holds a block twice: {list(table)}")
            holders.update(table)
        held = {block for block, count in enumerate(self._counts) if count}
        if self._free != sorted(set(range(self.total)) - held):
            raise EngineError(f"{self.free} free + {len(held)} held KV blocks are not {self.total}")
        for block in held | set(holders):
            if self._counts[block] != holders[block]:
                counted = self._counts[block]
                raise EngineError(f"KV block {block} is counted {counted} times, held {holders[block]} times")

    def _best(self, last: int | None, claim: Claim) -> int:
        following = self.total if last is None else last + 1
        for block in chain(range(following, min(following + 1, self.total)), range(claim.start, claim.stop)):
            if not self._counts[block] and not self._claimed(block, claim):
                return block
        unclaimed = (block for block in self._free if not self._claimed(block, claim))
        return next(unclaimed, self._free[0])

    def _claimed(self, block: int, but: Claim | None = None) -> bool:
        return any(claim.start <= block < claim.stop for claim in self._claims if claim is not but)

    def _stretches(self) -> Iterable[Claim]:
        """The stretches of free blocks that nobody claims."""
        start = previous = None
        for block in self._free:
            if self._claimed(block):
                continue
            if start is not None and previous is not None and block == previous + 1:
                previous = block
                continue
            if start is not None and previous is not None:
                yield Claim(start, previous + 1)
            start = previous = block
        if start is not None and previous is not None:
            yield Claim(start, previous + 1)
