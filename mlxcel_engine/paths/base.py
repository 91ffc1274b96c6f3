"""The protocol that every decode loop is adapted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import mlx.core as mx

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.prompts import Prompt
    from mlxcel_engine.records.evidence import Evidence


@dataclass(frozen=True)
class PathRequest:
    """What a path is asked to generate; ``max_tokens`` of at least 1."""

    prompt: Prompt
    max_tokens: int
    prefill_chunk: int
    sampling: ResolvedSampling = GREEDY


@dataclass(frozen=True)
class TokenStep:
    """One generated token, the logprobs ``[V]`` (nats, lazy) it was sampled from, and the text that it completed.

    The ending EOS is a step of its own with an empty share of the text. The last step has a ``finish_reason``:
    ``stop`` or ``length``.
    """

    token: int
    logprobs: mx.array
    text: str
    finish_reason: str | None


@dataclass(frozen=True)
class PathRun:
    """A run under way: iterate ``steps`` to the end, then ask for the ``evidence`` of what was done."""

    steps: Iterator[TokenStep]
    evidence: Callable[[], Evidence]


class DecodePath(Protocol):
    """A way to decode. ``name`` is stable: it stands in tables and records."""

    name: str

    def unavailable(self, loaded: LoadedModel) -> str | None:
        """Why this path cannot run this model, in a few words, or None when it can."""
        ...

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """Start ``request``; nothing is computed before the first step is asked for."""
        ...
