"""Paged KV: a block table per sequence over one pool per layer, blocks shared until they are written to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS, BlockAllocator, OutOfBlocksError, blocks_for
from mlxcel_engine.engine.kv.detached import CopiedKv, check_adoptable, check_held, check_kept, materialized
from mlxcel_engine.engine.kv.pool import PagedRows, Pool, Table
from mlxcel_engine.engine.kv.store import LARGEST_RESERVE, KvCounters, KvUsage
from mlxcel_engine.engine.kv.view import ViewForward
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.kv.blocks import Claim
    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.engine.types import SequenceId

_FIRST_BLOCKS = 64  # what a pool without a fixed size starts with


@dataclass(eq=False)
class SharedKv:
    """A prefix of ``tokens`` tokens as shared blocks. Implements :class:`DetachedKv`."""

    store: PagedKv
    blocks: tuple[int, ...]
    tokens: int
    released: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, whoever else holds them."""
        return len(self.blocks) * self.store.block_bytes

    def part(self, start: int, stop: int) -> SharedKv:
        """See :meth:`DetachedKv.part`; from the beginning of a block, sharing."""
        check_kept(self)
        if start % BLOCK_TOKENS or not 0 <= start <= stop <= self.tokens:
            raise EngineError(f"of {self.tokens} tokens in blocks of {BLOCK_TOKENS}, [{start},{stop}) cannot be kept")
        return self.store.keep(self.blocks[start // BLOCK_TOKENS : blocks_for(stop)], stop - start)

    def joined(self, others: Sequence[DetachedKv]) -> SharedKv:
        """See :meth:`DetachedKv.joined`; behind a whole block, sharing."""
        parts = [self, *(other for other in others if isinstance(other, SharedKv) and other.store is self.store)]
        check_kept(*parts)
        if len(parts) <= len(others) or any(part.tokens % BLOCK_TOKENS for part in parts[:-1]):
            raise EngineError("shared blocks can only be joined with those of the same pools, behind a whole block")
        blocks = tuple(block for part in parts for block in part.blocks)
        return self.store.keep(blocks, sum(part.tokens for part in parts))

    def release(self) -> None:
        """Let go of the blocks; again, it does nothing."""
        if not self.released:
            self.released = True
            self.store.let_go(self)


class PagedKv:
    """Implements :class:`~mlxcel_engine.engine.kv.store.KvStore`.

    ``blocks`` fixes the size of the pools; None lets them double when they are full.
    """

    name = "paged"
    batched = True

    def __init__(self, layers: int, blocks: int | None = None, exact: bool = True, alone: bool = False) -> None:
        """Keep the KV of ``layers`` layers; ``exact`` and ``alone`` are those of :class:`ViewForward`."""
        self.counters = KvCounters()
        self._exact, self._alone = exact, alone
        self._pools = [Pool() for _ in range(layers)]
        self._fixed = blocks is not None
        self._allocator = BlockAllocator(_FIRST_BLOCKS if blocks is None else blocks)
        self._tables: dict[SequenceId, Table] = {}
        self._kept: list[SharedKv] = []

    def create(self, sequence: SequenceId, tokens: int, reserve: int, prefix: DetachedKv | None = None) -> None:
        """See :meth:`KvStore.create`; a shared ``prefix`` costs nothing until it is written to, copies need room."""
        blocks = blocks_for(tokens + min(reserve, LARGEST_RESERVE))
        if isinstance(prefix, SharedKv) and prefix.store is self:
            check_adoptable(sequence, prefix, SharedKv)
            claim = self._claim(blocks - prefix.tokens // BLOCK_TOKENS)
            self._allocator.share(prefix.blocks)
            self._tables[sequence] = Table(claim, list(prefix.blocks), prefix.tokens)
            return
        copied = None if prefix is None else check_adoptable(sequence, prefix, CopiedKv)
        table = Table(self._claim(blocks))
        if copied is not None:
            try:
                self._restore(table, copied)
            except OutOfBlocksError:
                self._allocator.unclaim(table.claim)
                raise
        self._tables[sequence] = table

    def drop(self, sequence: SequenceId) -> None:
        """See :meth:`KvStore.drop`."""
        table = self._tables.pop(sequence)
        self._allocator.release(table.blocks)
        self._allocator.unclaim(table.claim)

    def forward(self, rows: Sequence[SequenceId], tokens: int, width: int | None = None) -> ViewForward:
        """See :meth:`KvStore.forward`.

        Raises:
            OutOfBlocksError: the pools are of fixed size and too full; no row has changed.

        """
        held = self._rows([self._tables[row] for row in rows], tokens)
        return ViewForward(
            held, len(self._pools), tokens, self.counters, exact=self._exact, alone=self._alone, width=width
        )

    def length(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.length`."""
        return self._tables[sequence].length

    def trim(self, sequence: SequenceId, tokens: int) -> None:
        """See :meth:`KvStore.trim`; blocks that become empty are free at once."""
        table = self._tables[sequence]
        check_held(sequence, tokens, table.length)
        table.length -= tokens
        keep = blocks_for(table.length)
        self._allocator.release(table.blocks[keep:])
        del table.blocks[keep:]

    def snapshot(self, sequence: SequenceId, tokens: int) -> SharedKv:
        """See :meth:`KvStore.snapshot`; the blocks are shared until one side writes into the last of them."""
        table = self._tables[sequence]
        check_held(sequence, tokens, table.length)
        return self.keep(tuple(table.blocks[: blocks_for(tokens)]), tokens)

    def keep(self, blocks: tuple[int, ...], tokens: int) -> SharedKv:
        """Hold ``blocks``, which hold ``tokens`` tokens, once more."""
        self._allocator.share(blocks)
        kept = SharedKv(self, blocks, tokens)
        self._kept.append(kept)
        return kept

    def detach(self, sequence: SequenceId) -> CopiedKv:
        """See :meth:`KvStore.detach`; copies outside the pools."""
        table = self._tables[sequence]
        spans = table.spans(0, table.length)
        held = [pool.read(spans) if spans and pool.arrays() else None for pool in self._pools]
        copied = CopiedKv.of(held, table.length)
        self.drop(sequence)
        return copied

    def nbytes(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.nbytes`; of whole blocks, shared ones too."""
        return len(self._tables[sequence].blocks) * self.block_bytes

    def usage(self) -> KvUsage:
        """See :meth:`KvStore.usage`; a shared block counts once, the bytes are those of the pools."""
        total = self._allocator.total
        nbytes = sum(array.nbytes for pool in self._pools for array in pool.arrays())
        return KvUsage(total - self._allocator.free, total if self._fixed else None, nbytes)

    def arrays(self, sequence: SequenceId) -> list[mx.array]:  # noqa: ARG002 - the pools hold all sequences
        """See :meth:`KvStore.arrays`."""
        return [array for pool in self._pools for array in pool.arrays()]

    def let_go(self, kept: SharedKv) -> None:
        """Release the blocks of a snapshot of this storage."""
        self._kept.remove(kept)
        self._allocator.release(kept.blocks)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers; 0 before the first token."""
        arrays = [array for pool in self._pools for array in pool.arrays()]
        return sum(array.nbytes // array.shape[2] * BLOCK_TOKENS for array in arrays)

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that anybody holds, a shared one counted once."""
        return (self._allocator.total - self._allocator.free) * self.block_bytes

    def check_integrity(self) -> None:
        """See :meth:`BlockAllocator.check_integrity`."""
        tables = [table.blocks for table in self._tables.values()]
        self._allocator.check_integrity([*tables, *(kept.blocks for kept in self._kept)])

    @property
    def _slots(self) -> int:
        return self._allocator.total * BLOCK_TOKENS

    def _claim(self, blocks: int) -> Claim:
        """Claim room for ``blocks`` more; pools that may grow do, where too few are free, if scattered ones."""
        if not self._fixed and self._allocator.unclaimed < blocks:
            self._grow(blocks)
        return self._allocator.claim(blocks)

    def _restore(self, table: Table, copied: CopiedKv) -> None:
        rows = self._rows([table], copied.tokens)
        for layer, pair in enumerate(copied.layers):
            if pair is not None:
                rows.append(layer, *pair)
        rows.commit(copied.tokens)

    def _rows(self, tables: list[Table], tokens: int) -> PagedRows:
        """Give every table the room for ``tokens`` more, then the rows over it."""
        needed = self._needed(tables, tokens)
        if needed > self._allocator.free:
            if self._fixed:
                free = f"{self._allocator.free} of {self._allocator.total} free"
                raise OutOfBlocksError(f"{needed} KV blocks needed, {free}; end a sequence or give more blocks")
            self._grow(needed)
        for table in tables:
            self._make_room(table, tokens)
        return PagedRows(self._pools, self._slots, tables, tokens)

    def _needed(self, tables: list[Table], tokens: int) -> int:
        """Blocks to take: new ones, and a copy for every writer of a shared block but the last one left with it."""
        missing = sum(max(blocks_for(table.length + tokens) - len(table.blocks), 0) for table in tables)
        written = [
            table.blocks[table.length // BLOCK_TOKENS] for table in tables if self._writes_into_shared(table, tokens)
        ]
        copies = (min(writers, self._allocator.count(block) - 1) for block, writers in Counter(written).items())
        return missing + sum(copies)

    def _writes_into_shared(self, table: Table, tokens: int) -> bool:
        inside_last = tokens > 0 and table.length % BLOCK_TOKENS > 0
        return inside_last and self._allocator.count(table.blocks[table.length // BLOCK_TOKENS]) > 1

    def _make_room(self, table: Table, tokens: int) -> None:
        if self._writes_into_shared(table, tokens):
            index = table.length // BLOCK_TOKENS
            before = table.blocks[index - 1] if index else None
            (own,) = self._allocator.take(1, before, table.claim)
            try:
                self._copy_block(table.blocks[index], own)
            except BaseException:
                self._allocator.release([own])
                raise
            self._allocator.release([table.blocks[index]])
            table.blocks[index] = own
        missing = blocks_for(table.length + tokens) - len(table.blocks)
        if missing > 0:
            table.blocks += self._allocator.take(missing, table.blocks[-1] if table.blocks else None, table.claim)

    def _copy_block(self, source: int, target: int) -> None:
        """Copy a block in every layer; waits for it, since a pool that is still read from would be copied whole."""
        used = [(pool, pool.arrays()) for pool in self._pools if pool.arrays()]
        start = source * BLOCK_TOKENS
        copies = [[materialized(array[..., start : start + BLOCK_TOKENS, :]) for array in arrays] for _, arrays in used]
        mx.eval(copies)
        start = target * BLOCK_TOKENS
        for (pool, _), (keys, values) in zip(used, copies, strict=True):
            for array, copy in zip(pool.fitted(self._slots, keys, values), (keys, values), strict=True):
                array[..., start : start + BLOCK_TOKENS, :] = copy

    def _grow(self, blocks: int) -> None:
        self._allocator.grow(self._allocator.total + max(self._allocator.total, blocks))
