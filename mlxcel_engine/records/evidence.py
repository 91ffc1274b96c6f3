from __future__ import annotations

from mlxcel_engine.records.base import Record


class Evidence(Record):
    """What a path was seen to do, read from counters while it ran."""

    storage: str
    """What held the KV: ``dense``, ``paged``, or the classes of ``mlx-lm``'s cache objects."""
    attention_calls: int | None
    """Calls into the path's own KV view; None where the path keeps ``mlx-lm``'s caches."""
    adopted: int
    """Prompt tokens taken from a prompt cache."""
    forwarded: int
    """Prompt tokens that went through the model."""
    partition: list[tuple[int, int]]
    """The ``[start, stop)`` pieces of the prompt as they went through, the last token's own forward included."""
    prompt_sha256: str
    """Hash of the prompt ids as the model got them."""
    decode_forwards: int
    """Forwards after the prompt, lookahead included."""
    widest_batch: int
    """The most rows that one of these had."""
    prompt_cache: bool
    """Whether a prompt cache was on."""
    chunk: int
    """Prompt tokens that may go through at once."""
    notes: list[str]
    """What else was seen, in words."""
