"""The other requests that share a batch with the one that is compared. No MLX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.resolved import ResolvedSampling
    from mlxcel_engine.records.evidence import Evidence

_LONGEST = 256  # tokens; longer neighbours would measure prefill, not batching


@dataclass(frozen=True)
class Neighbour:
    """A request that joins once the compared one has ``joins`` tokens, and leaves after ``tokens`` of its own."""

    prompt: tuple[int, ...]
    joins: int
    tokens: int
    sampling: ResolvedSampling


class Load:
    """The neighbours of one run; its text says what they were seen to do before the request ended."""

    def __init__(self, neighbours: tuple[Neighbour, ...]) -> None:
        self._waiting = list(neighbours)
        self._count = len(neighbours)
        self._left = 0
        self._ended = False

    def joining(self, tokens: int) -> list[Neighbour]:
        """Those whose turn it is now that the request has ``tokens`` tokens; each once."""
        found = [neighbour for neighbour in self._waiting if neighbour.joins <= tokens]
        self._waiting = self._waiting[len(found) :]
        return found

    def leave(self) -> None:
        """One has its last token."""
        self._left += not self._ended

    def end(self) -> None:
        """The request has its last token."""
        self._ended = True

    def __str__(self) -> str:
        joined = self._count - len(self._waiting)
        return f"{joined} of {self._count} neighbours joined, {self._left} left before it ended"


def make_neighbours(
    prompt: tuple[int, ...], sampling: ResolvedSampling, max_tokens: int, count: int, context: int | None
) -> tuple[Neighbour, ...]:
    """``count`` neighbours for a request of ``max_tokens``, always the same ones for the same request.

    They join one after the other from its first token on, and leave one after the other between the time when all
    are there and three quarters of its tokens, as far as it is long enough. None has as many prompt tokens as the
    request: by turns half of them, and some more. Their ids are the request's in another order, their seeds others.
    """
    found = []
    together, last = count + 3, 3 * max_tokens // 4
    for number in range(1, count + 1):
        leaves = min(together + max(0, last - together) * number // count, max_tokens - 2)
        stay = max(1, leaves - number)
        length = _length(len(prompt), number)
        if context is not None:
            length = max(1, min(length, context - stay))
        ids = tuple(prompt[(place * place + number) % len(prompt)] for place in range(length))
        found.append(Neighbour(ids, number, stay, _reseeded(sampling, number)))
    return tuple(found)


def too_narrow(evidence: Evidence, width: int) -> str | None:
    """Say so where not one step of the request was shared, or more rows shared one than the path's name says."""
    if evidence.forwarded and not 1 < evidence.widest_batch <= width:
        return f"its widest batch had {evidence.widest_batch} rows, not up to {width}"
    return None


def _length(own: int, number: int) -> int:
    if number % 2 and own > 2:
        return min(own // 2, _LONGEST - number)
    return own + 3 * number if own < _LONGEST else _LONGEST - number


def _reseeded(sampling: ResolvedSampling, number: int) -> ResolvedSampling:
    config = sampling.config
    if config.seed is not None:
        config = config.model_copy(update={"seed": (config.seed + number) % 2**64})
    return replace(sampling, config=config, forced=())
