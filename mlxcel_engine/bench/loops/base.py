"""The protocol of a timed loop: called as its users call it, with nothing recorded beside it. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

    from mlxcel_engine.bench.timing import StreamToken
    from mlxcel_engine.records.bench import StorageName

StreamTokens: TypeAlias = "Generator[StreamToken, None, None]"
Prompts: TypeAlias = "Sequence[tuple[int, ...]]"


@dataclass(frozen=True)
class LoopSettings:
    """How a loop is set up; ``storage`` is for the loops that have a choice, ``eos_ids`` are those that end a stream.

    ``prompt_cache`` keeps prompts where the loop can. ``tell_prefill`` hears how many prompt tokens of a pass are
    through the model.
    """

    chunk: int
    storage: StorageName
    batch: int
    eos_ids: frozenset[int]
    prompt_cache: bool
    tell_prefill: Callable[[int], None]


class Session(Protocol):
    """A loop that is set up, as a server that is up: it can be given requests again and again.

    ``storage`` names what holds the KV, ``chunk`` is how many prompt tokens go through the model at once.
    """

    storage: str
    chunk: int

    @property
    def attention_calls(self) -> int | None:
        """Calls into paged KV so far; None where the loop has ``mlx-lm``'s caches."""
        ...

    @property
    def adopted_tokens(self) -> int:
        """Prompt tokens that were taken from a prompt cache so far."""
        ...

    def run(self, prompts: Prompts, max_tokens: int) -> StreamTokens:
        """Submit all ``prompts`` at once, greedy; nothing is done before the first event is asked for."""
        ...


class DecodeLoop(Protocol):
    """A way to decode, bound to a model. ``name`` is the path's, as in tables and records.

    ``chooses_storage`` and ``caches_prompts`` tell whether :attr:`LoopSettings.storage` and ``prompt_cache`` mean
    anything to it.
    """

    name: str
    chooses_storage: bool
    caches_prompts: bool

    def unavailable(self, settings: LoopSettings) -> str | None:
        """Why this loop cannot do what is asked, in a few words, or None when it can."""
        ...

    def open(self, settings: LoopSettings) -> AbstractContextManager[Session]:
        """Set the loop up, and take it down at the end."""
        ...
