"""The other requests that share a batch with the one that is compared. No MLX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.resolved import ResolvedSampling

_LONGEST = 256  # tokens; longer neighbours would measure prefill, not batching


@dataclass(frozen=True)
class Neighbour:
    """A request that joins once the compared one has ``joins`` tokens, and leaves after ``tokens`` of its own."""

    prompt: tuple[int, ...]
    joins: int
    tokens: int
    sampling: ResolvedSampling


def make_neighbours(
    prompt: tuple[int, ...], sampling: ResolvedSampling, max_tokens: int, count: int, context: int | None
) -> tuple[Neighbour, ...]:
    """``count`` neighbours for a request of ``max_tokens``, always the same ones for the same request.

    They join one after the other from its first token on, stay for a growing part of it, and the last one leaves
    before it ends. None has as many prompt tokens as the request: by turns half of them, and some more. Their ids are
    the request's in another order, their seeds others.
    """
    found = []
    for number in range(1, count + 1):
        stay = max(1, (max_tokens - number - 2) * number // count)
        length = _length(len(prompt), number)
        if context is not None:
            length = max(1, min(length, context - stay))
        ids = tuple(prompt[(place * place + number) % len(prompt)] for place in range(length))
        found.append(Neighbour(ids, number, stay, _reseeded(sampling, number)))
    return tuple(found)


def _length(own: int, number: int) -> int:
    if number % 2 and own > 2:
        return min(own // 2, _LONGEST - number)
    return own + 3 * number if own < _LONGEST else _LONGEST - number


def _reseeded(sampling: ResolvedSampling, number: int) -> ResolvedSampling:
    config = sampling.config
    if config.seed is not None:
        config = config.model_copy(update={"seed": (config.seed + number) % 2**64})
    return replace(sampling, config=config, forced=())
