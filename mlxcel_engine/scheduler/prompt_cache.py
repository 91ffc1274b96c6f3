"""The prompt cache: kept prefixes of prompts and answers, bounded in bytes, least recently used out first.

Over paged KV a prefix is shared blocks, whole ones; over dense KV copies, each common part held once; over ``mlx-lm``'s
caches an exact snapshot. In the invariant mode these are whole chunks of prompts. It touches no tensor itself: the
engine keeps, divides and joins KV.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS
from mlxcel_engine.scheduler.radix import Node, RadixTree

if TYPE_CHECKING:
    from mlxcel_engine.engine import Engine, SequenceId
    from mlxcel_engine.engine.kv.store import DetachedKv


@dataclass
class CacheCounters:
    """What the cache did; only ever grows. A hit adopted at least one token; ``failures`` could not be kept."""

    hits: int = 0
    misses: int = 0
    adopted_tokens: int = 0
    evictions: int = 0
    failures: int = 0


@dataclass
class Lease:
    """A found prefix: ``kv`` for :meth:`Engine.open`, then :meth:`opened`; its nodes stay until :meth:`end`."""

    kv: DetachedKv
    node: Node

    @property
    def tokens(self) -> int:
        """How long it is."""
        return self.kv.tokens

    def opened(self) -> None:
        """Let go of ``kv``: the sequence has it."""
        self.kv.release()

    def end(self) -> None:
        """Let the cache evict it again; once."""
        self.node.pins -= 1


class PromptCache:
    """Finds, keeps and evicts prefixes. All calls come from the engine's thread."""

    def __init__(self, engine: Engine, limit: int) -> None:
        """Keep at most ``limit`` bytes; 0 keeps nothing."""
        self.counters = CacheCounters()
        self._engine = engine
        self._limit = limit
        self._shares = engine.storage == "paged"
        self._exact = not engine.support.batched
        granule = lcm(BLOCK_TOKENS if self._shares else 1, 1 if engine.shapes is None else engine.shapes.chunk)
        self._tree = RadixTree(granule, divisible=not self._exact)

    @property
    def nbytes(self) -> int:
        """Bytes held; over paged KV some of the blocks may be in use by sequences too."""
        return self._tree.nbytes

    def shared_blocks(self, key: str, prompt: tuple[int, ...]) -> int:
        """Blocks that a sequence of ``prompt`` would share instead of taking; none but over paged KV."""
        return self._tree.matched(key, prompt[:-1]) // BLOCK_TOKENS if self._shares else 0

    def lease(self, key: str, prompt: tuple[int, ...]) -> Lease | None:
        """Find the longest kept prefix of ``prompt``, all but its last token at most; counts a hit or a miss."""
        node = self._tree.find(key, prompt[:-1])
        if node is None:
            self.counters.misses += 1
            return None
        held = [node.kv] if self._exact else [passed.kv for passed in node.path]
        first, *others = [kv for kv in held if kv is not None]
        kv = first.joined(others)
        node.pins += 1
        self.counters.hits += 1
        self.counters.adopted_tokens += kv.tokens
        return Lease(kv, node)

    def store(self, key: str, tokens: tuple[int, ...], sequence: SequenceId) -> None:
        """Keep the KV of ``tokens``, the first ones that ``sequence`` holds (exactly all of them, if not divisible)."""
        tokens = tokens[: self._tree.whole(len(tokens))]
        if not tokens or self._engine.kv_bytes(sequence) > self._limit:  # it would drive out all others, and itself
            return

        def make(start: int) -> DetachedKv:
            kept = self._engine.snapshot(sequence, len(tokens))
            if start == 0:
                return kept
            try:
                return kept.part(start, len(tokens))
            finally:
                kept.release()

        if self._tree.insert(key, tokens, make) is None:
            return
        while self._tree.nbytes > self._limit and self.evict():
            pass

    def evict(self) -> bool:
        """Release the least recently used prefix; False when all that is left is in use."""
        freed = self._tree.evict()
        self.counters.evictions += freed is not None
        return freed is not None

    def reclaim(self) -> bool:
        """Release a prefix for the sake of sequences; False when there is none, or its room is not theirs."""
        return self._shares and self.evict()

    def clear(self) -> None:
        """Release everything."""
        self._tree.clear()
