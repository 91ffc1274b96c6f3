"""``mlx-lm``'s own cache objects, one list per sequence, for families that need them; one row a forward."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, make_prompt_cache, trim_prompt_cache

from mlxcel_engine.engine.kv.blocks import blocks_for
from mlxcel_engine.engine.kv.detached import check_adoptable, check_held, check_kept
from mlxcel_engine.engine.kv.store import KvCounters, KvUsage
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.nn as nn

    from mlxcel_engine.engine.kv.store import DetachedKv
    from mlxcel_engine.engine.types import SequenceId


@dataclass
class OwnKv:
    """The cache objects of a sequence. Implements :class:`DetachedKv`."""

    caches: list[Any]
    tokens: int
    released: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(cache.nbytes for cache in self.caches)

    def part(self, start: int, stop: int) -> OwnKv:
        """See :meth:`DetachedKv.part`; only all of them."""
        check_kept(self)
        if (start, stop) != (0, self.tokens):
            raise EngineError(f"only all {self.tokens} tokens of mlx-lm's caches can be kept, not [{start},{stop})")
        return OwnKv(self.caches, self.tokens)  # adopting copies them

    def joined(self, others: Sequence[DetachedKv]) -> OwnKv:
        """See :meth:`DetachedKv.joined`; with nothing else."""
        check_kept(self)
        if others:
            raise EngineError("mlx-lm's caches cannot be joined")
        return OwnKv(self.caches, self.tokens)

    def release(self) -> None:
        """Free the caches."""
        self.caches, self.released = [], True


@dataclass
class _OwnForward:
    """The caches of one sequence. Implements :class:`~mlxcel_engine.engine.kv.store.KvForward`."""

    store: OwnCaches
    sequence: SequenceId
    caches: list[Any]
    tokens: int

    def verify(self) -> None:
        """Nothing to check: these are the caches that the model's code was written for."""

    def commit(self) -> None:
        self.store.finish(self.sequence, self.tokens)


class OwnCaches:
    """Implements :class:`~mlxcel_engine.engine.kv.store.KvStore` over what ``make_prompt_cache`` returns.

    These objects change during a forward and cannot all be wound back, so a sequence whose forward was not committed
    cannot go on.
    """

    name = "mlx-lm caches"
    batched = False

    def __init__(self, model: nn.Module) -> None:
        self.counters = KvCounters()
        self._unfinished: set[SequenceId] = set()
        self._lengths: dict[SequenceId, int] = {}
        self._model = model
        self._caches: dict[SequenceId, list[Any]] = {}

    def create(
        self,
        sequence: SequenceId,
        tokens: int,  # noqa: ARG002 - they grow by themselves
        reserve: int,  # noqa: ARG002
        prefix: DetachedKv | None = None,
    ) -> None:
        """See :meth:`KvStore.create`; of ``prefix`` the cache objects are copied."""
        if prefix is None:
            self._caches[sequence], self._lengths[sequence] = make_prompt_cache(self._model), 0
            return
        own = check_adoptable(sequence, prefix, OwnKv)
        self._caches[sequence], self._lengths[sequence] = copy.deepcopy(own.caches), own.tokens

    def drop(self, sequence: SequenceId) -> None:
        """See :meth:`KvStore.drop`."""
        del self._caches[sequence], self._lengths[sequence]
        self._unfinished.discard(sequence)

    def forward(
        self,
        rows: Sequence[SequenceId],
        tokens: int,
        width: int | None = None,  # noqa: ARG002 - it is always one row
    ) -> _OwnForward:
        """See :meth:`KvStore.forward`.

        Raises:
            EngineError: an earlier forward of the sequence failed half-way.

        """
        (sequence,) = rows
        self._check_finished(sequence)
        self._unfinished.add(sequence)
        return _OwnForward(self, sequence, self._caches[sequence], tokens)

    def _check_finished(self, sequence: SequenceId) -> None:
        if sequence in self._unfinished:
            raise EngineError(f"sequence {sequence}: a forward failed half-way and its caches cannot go on; close it")

    def finish(self, sequence: SequenceId, tokens: int) -> None:
        """Count a forward that went through."""
        self._unfinished.discard(sequence)
        self._lengths[sequence] += tokens

    def length(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.length`."""
        return self._lengths[sequence]

    def trim(self, sequence: SequenceId, tokens: int) -> None:
        """See :meth:`KvStore.trim`; only where every cache of the family can go back."""
        self._check_finished(sequence)
        check_held(sequence, tokens, self._lengths[sequence])
        caches = self._caches[sequence]
        stuck = sorted({type(cache).__name__ for cache in caches if not _goes_back(cache)})
        if tokens and stuck:
            raise EngineError(f"sequence {sequence}: {', '.join(stuck)} cannot go back by {tokens} tokens")
        trim_prompt_cache(caches, tokens)
        self._lengths[sequence] -= tokens

    def snapshot(self, sequence: SequenceId, tokens: int) -> OwnKv:
        """See :meth:`KvStore.snapshot`; only all of a sequence, since a ring or a state has no prefix."""
        self._check_finished(sequence)
        if tokens != self._lengths[sequence]:
            held = self._lengths[sequence]
            raise EngineError(f"sequence {sequence}: only all {held} tokens can be kept, not {tokens}")
        return OwnKv(copy.deepcopy(self._caches[sequence]), tokens)

    def detach(self, sequence: SequenceId) -> OwnKv:
        """See :meth:`KvStore.detach`; the cache objects themselves."""
        self._check_finished(sequence)
        kept = OwnKv(self._caches[sequence], self._lengths[sequence])
        self.drop(sequence)
        return kept

    def nbytes(self, sequence: SequenceId) -> int:
        """See :meth:`KvStore.nbytes`; of the cache objects."""
        return sum(cache.nbytes for cache in self._caches[sequence])

    def usage(self) -> KvUsage:
        """See :meth:`KvStore.usage`."""
        nbytes = sum(cache.nbytes for caches in self._caches.values() for cache in caches)
        return KvUsage(sum(map(blocks_for, self._lengths.values())), None, nbytes)

    def arrays(self, sequence: SequenceId) -> list[mx.array]:
        """See :meth:`KvStore.arrays`."""
        states: list[Any] = list(dict(tree_flatten([cache.state for cache in self._caches[sequence]])).values())
        return [item for item in states if isinstance(item, mx.array)]


def _goes_back(cache: Any) -> bool:
    """Whether a cache can be trimmed to what it was; one that has thrown its first keys away says that it can."""
    parts = cache.caches if isinstance(cache, CacheList) else [cache]
    return all(part.is_trimmable() and not getattr(part, "start_position", 0) for part in parts)
