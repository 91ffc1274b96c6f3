"""The request channel: what clients ask of the worker, from any thread. No MLX.

Its lock is held for a few operations on lists, never while anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from threading import Condition
from typing import TYPE_CHECKING

from mlxcel_engine.scheduler.errors import QueueFull, SchedulerClosed

if TYPE_CHECKING:
    from mlxcel_engine.scheduler.ticket import Ticket


class Mode(Enum):
    """What a scheduler is up to."""

    OPEN = "open"
    DRAINING = "draining"  # live rows go on to their ends
    STOPPING = "stopping"  # everything ends now
    DEAD = "dead"  # nobody reads the inbox any more


@dataclass
class Orders:
    """What came in since the last look."""

    mode: Mode
    arrived: list[Ticket] = field(default_factory=list)
    cancelled: list[Ticket] = field(default_factory=list)


class Inbox:
    """Bounded: ``limit`` requests may be in the queue, which are those here and those the worker has not admitted."""

    def __init__(self, limit: int) -> None:
        self._changed = Condition()
        self._limit = limit
        self._orders = Orders(Mode.OPEN)
        self._mode = Mode.OPEN
        self._cause: BaseException | None = None
        self._queued = 0
        self._outstanding = 0
        self.submitted = 0

    @property
    def queued(self) -> int:
        """Requests in the queue."""
        return self._queued

    def put(self, ticket: Ticket) -> None:
        """Queue a request.

        Raises:
            QueueFull: there is no place for it.
            SchedulerClosed: nobody will take it.

        """
        with self._changed:
            if self._mode is not Mode.OPEN:
                raise SchedulerClosed(f"the scheduler is {self._mode.value} and takes no requests") from self._cause
            if self._queued >= self._limit:
                raise QueueFull(f"{self._queued} requests wait already, and the queue holds {self._limit}; try later")
            self._orders.arrived.append(ticket)
            self._queued += 1
            self._outstanding += 1
            self.submitted += 1
            self._changed.notify_all()

    def cancel(self, ticket: Ticket) -> None:
        """Ask for the end of a request."""
        with self._changed:
            self._orders.cancelled.append(ticket)
            self._changed.notify_all()

    def close(self, mode: Mode, cause: BaseException | None = None) -> None:
        """Go on to ``mode``, never back."""
        order = list(Mode)
        with self._changed:
            if order.index(mode) > order.index(self._mode):
                self._mode, self._cause = mode, cause
            self._changed.notify_all()

    def take(self, wait: bool) -> Orders:
        """Take what came in; ``wait`` until there is something, or the mode is no longer open."""
        with self._changed:
            if wait:
                self._changed.wait_for(self._anything)
            orders = self._orders
            orders.mode = self._mode
            self._orders = Orders(self._mode)
            return orders

    def left_queue(self) -> None:
        """A request was admitted, or ended before it was."""
        with self._changed:
            self._queued -= 1

    def ended(self) -> None:
        """A request has ended."""
        with self._changed:
            self._outstanding -= 1
            self._changed.notify_all()

    def join(self, timeout: float | None) -> bool:
        """Wait until every accepted request has ended; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outstanding == 0, timeout)

    def _anything(self) -> bool:
        return bool(self._orders.arrived or self._orders.cancelled) or self._mode is not Mode.OPEN
