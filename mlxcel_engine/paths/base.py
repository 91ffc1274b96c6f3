"""The protocol that every decode loop is adapted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling
from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import mlx.core as mx

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.prompts import Prompt
    from mlxcel_engine.records.evidence import Evidence


@dataclass(frozen=True)
class PathRequest:
    """What a path is asked to generate; ``max_tokens`` 0 gives nothing and forwards nothing."""

    prompt: Prompt
    max_tokens: int
    prefill_chunk: int
    sampling: ResolvedSampling = GREEDY

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise UsageError(f"max_tokens is {self.max_tokens}; give 0 or more")


@dataclass(frozen=True)
class TokenStep:
    """One generated token, the logprobs ``[V]`` (nats, lazy) it was sampled from, and the text that it completed.

    The ending EOS is a step of its own; its text is at most what a detokenizer had held back. The last step has a
    ``finish_reason``: ``stop`` or ``length``.
    """

    token: int
    logprobs: mx.array
    text: str
    finish_reason: str | None


TokenSteps: TypeAlias = "Generator[TokenStep, None, None]"


@dataclass(frozen=True)
class PathRun:
    """A run under way: iterate ``steps`` to the end, then ask for the ``evidence`` of what was done."""

    steps: TokenSteps
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
