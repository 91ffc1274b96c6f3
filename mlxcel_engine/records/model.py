from __future__ import annotations

from typing import Any

from mlxcel_engine.records.base import Record


class ModelRecord(Record):
    """``weights`` is ``dequantized``, ``quantized`` or ``unquantized``; ``weight_bytes`` as held in memory.

    ``revision`` is the hub's commit, or the cache entry of a converted checkpoint; ``quantization`` is the config's.
    """

    spec: str
    label: str
    architecture: str
    dtype: str
    weights: str
    weight_bytes: int
    revision: str | None
    quantization: dict[str, Any] | None
    vocab_size: int
    context_length: int | None
    eos_ids: list[int]
    synthetic: bool
