"""What a client holds of its request: tokens as they come, the result in the end. No MLX."""

from __future__ import annotations

import asyncio
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from mlxcel_engine.scheduler.request import RequestResult, TokenEvent


class RequestHandle:
    """Any number of threads and tasks may read it, each from the first token; a handle that nobody reads costs memory
    only, some hundred bytes a token (and all logprobs, if they were asked for), as long as the handle lives.

    Iterating ends with the request, quietly if it was cancelled, and raises the error if it failed. ``async for`` does
    the same, and ``await handle`` is :meth:`result`.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._changed = Condition()
        self._events: list[TokenEvent] = []
        self._result: RequestResult | None = None
        self._listeners: list[Callable[[], object]] = []

    def cancel(self) -> None:
        """Ask for an early end; it comes with the next tick. After the end, it does nothing."""
        if not self.done:
            self._cancel()

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._result is not None

    def wait(self, timeout: float | None = None) -> RequestResult:
        """Wait for the end, whatever it is.

        Raises:
            TimeoutError: it did not come within ``timeout`` seconds.

        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._result is not None, timeout):
                raise TimeoutError(f"the request has not ended within {timeout} s")
            assert self._result is not None  # waited for
            return self._result

    def result(self, timeout: float | None = None) -> RequestResult:
        """Wait for the end; that of a cancelled request has what it had generated.

        Raises:
            RequestFailed: it failed.
            SchedulerClosed: the scheduler was shut down, or died.
            TimeoutError: the end did not come within ``timeout`` seconds.

        """
        return _checked(self.wait(timeout))

    def text(self, timeout: float | None = None) -> str:
        """Wait for the whole text; raises as :meth:`result` does."""
        return self.result(timeout).text

    def __iter__(self) -> Iterator[TokenEvent]:
        index = 0
        while True:
            ready, result = self._news(index)
            yield from ready
            index += len(ready)
            if result is not None:
                _checked(result)
                return

    def _news(self, index: int) -> tuple[list[TokenEvent], RequestResult | None]:
        """Wait for tokens from ``index`` on, or the end."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > index or self.done)
            return self._events[index:], self._result

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        loop, changed, index = asyncio.get_running_loop(), asyncio.Event(), 0

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._listeners.append(wake)
        try:
            while True:
                changed.clear()
                with self._changed:
                    ready, result = self._events[index:], self._result
                for event in ready:
                    yield event
                index += len(ready)
                if result is not None:
                    _checked(result)
                    return
                await changed.wait()
        finally:
            with self._changed:
                self._listeners.remove(wake)

    def __await__(self) -> Generator[object, None, RequestResult]:
        return self._ended().__await__()

    async def _ended(self) -> RequestResult:
        async for _ in self:
            pass
        return self.result()

    def put(self, event: TokenEvent) -> None:
        """The worker has a token."""
        with self._changed:
            self._events.append(event)
            self._notify()

    def end(self, result: RequestResult) -> None:
        """The worker has the result; the first one counts."""
        with self._changed:
            if self._result is None:
                self._result = result
                self._cancel = _nothing
                self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._listeners:
            try:
                wake()
            except RuntimeError:  # its event loop is closed, so nobody waits there any more
                continue


def _nothing() -> None:
    """Cancel what has ended."""


def _checked(result: RequestResult) -> RequestResult:
    if result.error is not None:
        raise result.error.with_traceback(None)  # each reader raises it anew
    return result
