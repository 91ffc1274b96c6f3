"""What a scheduler does, as one frozen snapshot. No MLX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerMetrics:
    """As of the end of a tick. Tokens of KV are counted in whole blocks.

    ``queued`` requests were never admitted yet, ``detached`` rows were moved out (``detached_bytes`` of KV) and come
    back. ``kv_tokens_free`` is None where there is no bound. ``fallbacks`` are the decode steps of several rows that
    the family made the engine run row by row. From
    ``ticks`` on they only ever grow.
    """

    queued: int = 0
    prefilling: int = 0
    decoding: int = 0
    detached: int = 0
    detached_bytes: int = 0
    kv_tokens_used: int = 0
    kv_tokens_free: int | None = None
    kv_bytes: int = 0
    cache_bytes: int = 0
    ticks: int = 0
    steps: int = 0
    prefill_pieces: int = 0
    fallbacks: int = 0
    preemptions: int = 0
    recomputed_rows: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_adopted_tokens: int = 0
    cache_evictions: int = 0
    cache_failures: int = 0
    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    generated_tokens: int = 0

    @property
    def live(self) -> int:
        """Rows in the engine."""
        return self.prefilling + self.decoding
