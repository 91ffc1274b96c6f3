"""What a request is, and what comes back of it. No MLX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mlxcel_engine.engine.sampling.resolved import GREEDY, ResolvedSampling
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx

    from mlxcel_engine.engine.finish import Finish, StopRules
    from mlxcel_engine.engine.kv.store import KvCounters
    from mlxcel_engine.engine.text import Detokenizer
    from mlxcel_engine.errors import RunError

LARGEST_PRIORITY = 100
Ending = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token: its text as it became final, and why the request ends with it, if it does.

    ``at`` is when the host had it (``time.perf_counter`` seconds). ``logprobs`` ``[V]`` (nats, the model's dtype),
    computed, if the request asked for them: what it was sampled from, after bias and penalties.
    """

    index: int
    token: int
    text: str
    finish: Finish | None
    at: float
    logprobs: mx.array | None = None


@dataclass(frozen=True)
class Request:
    """What is to be generated; ``prompt`` becomes a tuple.

    ``rules`` hold EOS ids, limits and stop strings; a ``detokenizer`` (a fresh one) gives text. A higher ``priority``
    is served before those that arrive about the same time (see :func:`~mlxcel_engine.scheduler.policy.rank`). Requests
    of one ``cache_key`` share prefixes in the prompt cache; None keeps out of it. ``boundary`` is how much of the
    prompt the next turn will have in common: there a piece of the prefill ends and is kept; None is all but the last
    token. ``on_token`` is called in the worker's thread, which it must not keep: hand the event on and return.
    """

    prompt: tuple[int, ...]
    rules: StopRules
    sampling: ResolvedSampling = GREEDY
    detokenizer: Detokenizer | None = None
    priority: int = 0
    cache_key: str | None = ""
    boundary: int | None = None
    logprobs: bool = False
    on_token: Callable[[TokenEvent], object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))  # a list, as a tokenizer returns it, could change
        if not isinstance(self.cache_key, str | None):
            raise EngineError(f"cache_key {self.cache_key!r}: give a text, or None to keep out of the prompt cache")
        if not isinstance(self.boundary, int | None):
            raise EngineError(f"boundary {self.boundary!r}: give a whole number of prompt tokens, or None")
        if not -LARGEST_PRIORITY <= self.priority <= LARGEST_PRIORITY:
            raise EngineError(f"priority {self.priority}: give -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}")


@dataclass(frozen=True)
class Timings:
    """When things happened to a request, ``time.perf_counter`` seconds; None for what did not."""

    submitted: float
    ended: float
    admitted: float | None
    tokens: tuple[float, ...]

    @property
    def ttft(self) -> float | None:
        """Seconds from submission to the first token."""
        return self.tokens[0] - self.submitted if self.tokens else None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens a second after the first one; None for fewer than two."""
        if len(self.tokens) < 2:
            return None
        return (len(self.tokens) - 1) / (self.tokens[-1] - self.tokens[0])


@dataclass(frozen=True)
class RequestResult:
    """How a request ended, and what was done for it.

    ``tokens`` include an ending EOS, ``text`` does not. ``error`` is set if ``finish_reason`` is ``error``. Of the
    prompt, ``adopted`` tokens came from the prompt cache; ``forwarded`` counts every token that went through the model
    for this request: prompt, decode steps, lookahead, and what was recomputed (``recomputed`` of them).
    ``partition`` is the prefill, ``counters`` what the storage did in the forwards that the request was part of,
    ``kv_bytes`` the size of its KV in the end.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: Ending
    finish: Finish | None
    error: RunError | None
    timings: Timings
    prompt_tokens: int
    adopted: int
    forwarded: int
    recomputed: int
    preemptions: int
    partition: str
    storage: str
    kv_bytes: int
    counters: KvCounters = field(repr=False)
