"""The protocol that every decode loop is adapted to."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling
from mlxcel_engine.errors import MlxcelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import mlx.core as mx

    from mlxcel_engine.engine import FixedShapes
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths.layer_probe import LayerProbe
    from mlxcel_engine.prompts import Prompt
    from mlxcel_engine.records.evidence import Evidence


FOREIGN_FAILURES = (Exception, SystemExit, CancelledError)
"""How a loop of another author may fail; the last two are no ``Exception``, and are not to end our process either."""


@dataclass(frozen=True)
class PathRequest:
    """What a path is asked to generate; ``max_tokens`` 0 gives nothing and forwards nothing.

    ``invariant`` holds for our own engine alone. With a ``probe`` the path hands it to
    :func:`~mlxcel_engine.paths.forward_log.record_forwards`.
    """

    prompt: Prompt
    max_tokens: int
    prefill_chunk: int
    sampling: ResolvedSampling = GREEDY
    probe: LayerProbe | None = None
    invariant: FixedShapes | None = None

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


class CannotShowError(MlxcelError):
    """Raised at the end of ``steps``: this request left no room for what the path's name says; the row is n/a."""


def nothing_claimed(evidence: Evidence) -> str | None:  # noqa: ARG001 - what a claim is given
    """Claim nothing beyond what every run must show."""
    return None


@dataclass(frozen=True)
class PathRun:
    """A run under way: iterate ``steps`` to the end, then ask for the ``evidence`` of what was done.

    ``broken_claim`` says in what that evidence is not what the path's name claims, such as paged KV that fell back to
    dense, or None; the row is then invalid.
    """

    steps: TokenSteps
    evidence: Callable[[], Evidence]
    broken_claim: Callable[[Evidence], str | None] = nothing_claimed


class DecodePath(Protocol):
    """A way to decode. ``name`` is stable: it stands in tables and records.

    A path may also have ``variants``, see :func:`variants_of`.
    """

    name: str

    def unavailable(self, loaded: LoadedModel) -> str | None:
        """Why this path cannot run this model, in a few words, or None when it can."""
        ...

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """Start ``request``; nothing is computed before the first step is asked for."""
        ...


def variants_of(path: DecodePath) -> Mapping[str, DecodePath]:
    """The same loop with one setting of its own changed, by what the change is called (``batch width 1``).

    They are the path's ``variants``, the largest change last; a path without that attribute has none.
    """
    variants: Mapping[str, DecodePath] = getattr(path, "variants", {})
    return variants
