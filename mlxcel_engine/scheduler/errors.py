"""What a scheduler refuses, and what ends requests that it cannot finish."""

from __future__ import annotations

from mlxcel_engine.errors import EngineError, RunError


class QueueFull(EngineError):  # noqa: N818 - named as the standard library names it
    """As many requests wait as the queue holds; try again later. Nothing was accepted."""


class SchedulerClosed(RunError):  # noqa: N818 - a state, as in :class:`QueueFull`
    """The scheduler was shut down, or its worker died (then ``__cause__`` says of what)."""


class RequestFailed(RunError):  # noqa: N818 - what happened, as in :class:`QueueFull`
    """One request could not go on; ``__cause__`` says why. Its neighbours are not touched."""
