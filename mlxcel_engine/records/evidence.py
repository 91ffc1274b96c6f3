from __future__ import annotations

from mlxcel_engine.records.base import Record


class Evidence(Record):
    """What a path was seen to do, read from counters while it ran.

    ``partition`` lists the ``[start, stop)`` pieces of the prompt in the order they went through the model, the
    last token's own forward included; ``prompt_sha256`` is the hash of its ids as the model got them.
    ``forwarded`` counts prompt tokens, ``adopted`` those taken from a prompt cache instead, ``decode_forwards`` the
    forwards after the prompt (lookahead included), ``widest_batch`` the most rows that one of these had.
    ``attention_calls`` counts calls into the path's own KV view; None where the path keeps ``mlx-lm``'s caches.
    """

    storage: str
    attention_calls: int | None
    adopted: int
    forwarded: int
    partition: list[tuple[int, int]]
    prompt_sha256: str
    decode_forwards: int
    widest_batch: int
    prompt_cache: bool
    chunk: int
    notes: list[str]
