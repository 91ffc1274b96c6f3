from __future__ import annotations

from mlxcel_engine.records.base import Record


class ModelRecord(Record):
    """``weights`` is ``dequantized``, ``quantized`` or ``unquantized``; ``weight_bytes`` as held in memory."""

    spec: str
    label: str
    architecture: str
    dtype: str
    weights: str
    weight_bytes: int
    vocab_size: int
    context_length: int | None
    eos_ids: list[int]
    synthetic: bool
