"""When tokens arrive: the measuring part of the bench. No MLX; the clock and the loop are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TELL_EVERY = 0.5  # seconds between two notes of progress: seldom, for they run between tokens


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A token that a loop gave out: of which stream, its id, and why the stream ended with it, if it did.

    ``at`` is when it was there for the stream's reader, on the clock of the pass; None takes the time of reading it.
    """

    stream: int
    token: int
    finish_reason: str | None
    at: float | None = None


@dataclass
class StreamTimes:
    """One stream of a pass: its tokens and when each arrived, in seconds since the submission."""

    tokens: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    finish_reason: str | None = None


def time_streams(
    events: Iterable[StreamToken], streams: int, clock: Callable[[], float], tell: Callable[[int], None]
) -> list[StreamTimes]:
    """Consume ``events`` and stamp each as it comes; the submission is the first request for one.

    ``tell`` hears the number of tokens so far: at the first one, and about twice a second.

    Raises:
        RunError: the loop ended although a stream had not.

    """
    times = [StreamTimes() for _ in range(streams)]
    told = float("-inf")
    start = clock()
    for count, event in enumerate(events, start=1):
        now = clock() if event.at is None else event.at
        stream = times[event.stream]
        stream.tokens.append(event.token)
        stream.arrivals.append(now - start)
        stream.finish_reason = event.finish_reason
        if now - told >= _TELL_EVERY:
            tell(count)
            told = now
    for index, stream in enumerate(times):
        if stream.finish_reason is None:
            raise RunError(f"stream {index} ended after {len(stream.tokens)} tokens without a finish reason")
    return times
