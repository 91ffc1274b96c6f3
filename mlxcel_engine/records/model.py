from __future__ import annotations

from typing import Any

from mlxcel_engine.records.base import Record


class ModelRecord(Record):
    """The checkpoint, as it was loaded."""

    spec: str
    """As it was asked for; of a path, its last component."""
    label: str
    """What tables call it."""
    architecture: str
    """The config's ``model_type``."""
    dtype: str
    """Of most of the weights as they ran."""
    weights: str
    """``dequantized``, ``quantized`` or ``unquantized``."""
    weight_bytes: int
    """As held in memory."""
    revision: str | None
    """The hub's commit, or the cache entry of a converted checkpoint."""
    quantization: dict[str, Any] | None
    """The config's."""
    vocab_size: int
    """Tokens."""
    context_length: int | None
    """Tokens; None where the config does not tell."""
    eos_ids: list[int]
    """Ids that end a text, of config and tokenizer."""
    synthetic: bool
    """Random weights: good for speed alone."""
