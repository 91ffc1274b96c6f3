"""How a scheduler is set. No MLX."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.errors import EngineError


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a scheduler.

    ``max_batch`` rows decode together; ``queue`` requests may wait to be admitted; prompts are prefilled in pieces of
    at most ``chunk`` tokens. ``kv_tokens`` bounds the KV of all live rows where the engine's pools have no fixed size
    (None: no bound). The KV of preempted rows is kept up to ``detached_bytes``, beyond that recomputed; in the
    invariant mode it is always kept, and pieces have the engine's own chunk.
    ``prompt_cache_bytes`` of kept prefixes, 0 for no prompt cache. One step of priority is worth ``priority_ticks``
    ticks of waiting.
    """

    max_batch: int = 32
    queue: int = 1024
    chunk: int = DEFAULT_CHUNK
    kv_tokens: int | None = None
    detached_bytes: int = 2**30
    prompt_cache_bytes: int = 0
    priority_ticks: int = 256

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "chunk", "priority_ticks"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name}={getattr(self, name)}: give 1 or more")
        for name in ("detached_bytes", "prompt_cache_bytes"):
            if getattr(self, name) < 0:
                raise EngineError(f"{name}={getattr(self, name)}: give 0 or more bytes")
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise EngineError(f"kv_tokens={self.kv_tokens}: give 1 or more, or None for no bound")
