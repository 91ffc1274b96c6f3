"""The tick policy: who is admitted, who is moved out, what runs in a tick. No MLX; ADR 0005 has the reasons.

It counts KV in blocks of 16 tokens, whatever the storage. What it decides is carried out by a
:class:`Room`, which knows the storage; after each move the policy looks anew at what is free.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from mlxcel_engine.engine.kv.blocks import blocks_for
from mlxcel_engine.errors import EngineError


class Rank(NamedTuple):
    """The order in which requests are served, lowest first; fixed when a request arrives."""

    due: int
    serial: int


def rank(priority: int, tick: int, serial: int, priority_ticks: int) -> Rank:
    """Rank a request that arrives at ``tick``: a step of priority is worth ``priority_ticks`` of waiting.

    Nobody starves: whoever comes more than the difference in priority times ``priority_ticks`` later ranks behind.
    """
    return Rank(tick - priority * priority_ticks, serial)


@dataclass(eq=False)
class Seat:
    """What the policy knows of a request.

    ``target`` tokens of KV are needed before its first step, ``held`` are there. ``steps_left`` decode steps may still
    be queued.
    """

    rank: Rank
    target: int
    steps_left: int
    held: int = 0

    @property
    def prefilling(self) -> bool:
        """Whether tokens of its prompt have still to be forwarded."""
        return self.held < self.target

    @property
    def steps(self) -> bool:
        """Whether it takes part in the next decode step."""
        return not self.prefilling and self.steps_left > 0


S = TypeVar("S", bound=Seat)
_S = TypeVar("_S", bound=Seat, contravariant=True)


class Room(Protocol[_S]):
    """The storage, as the policy needs it. Sizes are in blocks."""

    def free(self) -> int | None:
        """How many are free; None where there is no bound."""
        ...

    def reclaim(self) -> bool:
        """Give up one kept prefix that nobody uses; whether there was one."""
        ...

    def cost(self, seat: _S) -> int:
        """How many ``seat`` takes if it enters now: all of its KV that is not shared, and the next token's."""
        ...

    def next_piece(self, seat: _S) -> int:
        """Tokens of the next piece of its prefill."""
        ...

    def enter(self, seat: _S) -> None:
        """Bring ``seat`` in, for the first time or again; if that fails, it is removed from the policy."""
        ...

    def leave(self, seat: _S) -> None:
        """Move ``seat`` out so that its blocks are free; it will :meth:`enter` again."""
        ...


@dataclass(frozen=True)
class Tick(Generic[S]):
    """What runs in a tick: one decode step of ``decode``, and beside it one piece of the prompt of ``prefill``."""

    decode: tuple[S, ...]
    prefill: S | None


@dataclass
class TickPolicy(Generic[S]):
    """``live`` rows are in the engine, ``waiting`` ones are not: new requests and rows moved out, by rank."""

    room: Room[S]
    max_batch: int
    live: list[S] = field(default_factory=list)
    waiting: list[S] = field(default_factory=list)
    tick: int = 0
    preemptions: int = 0

    def wait(self, seat: S) -> None:
        """Put a new request, or a row that was moved out, in its place in the queue."""
        insort(self.waiting, seat, key=lambda other: other.rank)

    def remove(self, seat: S) -> None:
        """Forget a request that ended, wherever it is."""
        (self.live if seat in self.live else self.waiting).remove(seat)

    def pressed(self) -> bool:
        """Whether the rows that are live find too little room for the next tick as it is."""
        return self._shortage(self._step_blocks() + self._piece_blocks()) > 0

    def schedule(self) -> Tick[S]:
        """Decide on the next tick: make room for it, admit who fits behind it.

        The decode step comes first, one piece of prefill fits in beside it. Whoever was just moved out is not brought
        back in the same tick.

        Raises:
            EngineError: a single row does not fit; requests that long are not to be accepted.

        """
        self.tick += 1
        if not self._make_room():
            self._admit()
            self._make_room()
        return Tick(tuple(seat for seat in self.live if seat.steps), self._prefilling())

    def _make_room(self) -> bool:
        """Move rows out, the last in rank first, until the tick fits; whether any was."""
        moved = False
        while (short := self._shortage(self._step_blocks() + self._piece_blocks())) > 0:
            if self.room.reclaim():
                continue
            if len(self.live) == 1:
                raise EngineError(f"a single row needs {short} KV blocks more than there are")
            self._move_out(max(self.live, key=lambda seat: seat.rank))
            moved = True
        return moved

    def _move_out(self, seat: S) -> None:
        self.room.leave(seat)
        self.preemptions += 1
        self.live.remove(seat)
        self.wait(seat)

    def _admit(self) -> None:
        """Bring in the first in rank while they fit, with a block to spare for every row that is live already.

        Behind one that has to be prefilled the others wait, so that they may share its prefix.
        """
        while self.waiting and len(self.live) < self.max_batch and self._prefilling() is None:
            seat = self.waiting[0]
            while (short := self._shortage(self.room.cost(seat) + len(self.live))) > 0:
                if not self.room.reclaim():
                    break
            if short > 0 and self.live:
                return
            self.waiting.remove(seat)
            self.live.append(seat)
            self.room.enter(seat)

    def _prefilling(self) -> S | None:
        """The first in rank whose prompt is not done."""
        return min((seat for seat in self.live if seat.prefilling), key=lambda seat: seat.rank, default=None)

    def _shortage(self, blocks: int) -> int:
        free = self.room.free()
        return 0 if free is None else max(blocks - free, 0)

    def _step_blocks(self) -> int:
        return sum(new_blocks(seat.held, 1) for seat in self.live if seat.steps)

    def _piece_blocks(self) -> int:
        seat = self._prefilling()
        return 0 if seat is None else new_blocks(seat.held, self.room.next_piece(seat))


def new_blocks(held: int, tokens: int) -> int:
    """Blocks that a row of ``held`` tokens takes for ``tokens`` more."""
    return blocks_for(held + tokens) - blocks_for(held)
