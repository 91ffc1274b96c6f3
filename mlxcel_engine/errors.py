"""The one family of errors that users see: a single line that names the thing, the value and the remedy."""

from __future__ import annotations


def one_line(error: BaseException, length: int = 160) -> str:
    """What an exception says, on one line of at most ``length`` characters, its type first."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).encode(errors="backslashreplace").decode()
    return text if len(text) <= length else text[: length - 3] + "..."


class MlxcelError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line exits with."""

    exit_code = 2


class UsageError(MlxcelError):
    """An option, a setting or a prompt that cannot be used."""


class CheckpointError(MlxcelError):
    """A model that cannot be found, fetched, read or run on this device."""


class EngineError(MlxcelError):
    """The engine was asked for something that it does not do; names the sequence where there is one."""

    exit_code = 3


class RunError(MlxcelError):
    """A run failed for a reason other than its input: out of memory, a crashed path, a time-out."""

    exit_code = 3
