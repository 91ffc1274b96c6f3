"""Tiny models as the loader returns them, and as directories on disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.loader.load import LoadedModel
from mlxcel_engine.loader.synthetic import byte_tokenizer
from mlxcel_engine.records.model import ModelRecord
from tests.tiny import VOCAB, parameters, tiny_config, tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    import mlx.nn as nn


def tiny_loaded(name: str = "llama", eos_ids: tuple[int, ...] = (), model: nn.Module | None = None) -> LoadedModel:
    """A tiny model with a byte tokenizer; its logits rows are the model's, its text is of no meaning."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token_ids = eos_ids
    record = ModelRecord(
        spec=f"tiny:{name}",
        label=f"tiny {name}",
        architecture=name,
        dtype="float32",
        weights="unquantized",
        weight_bytes=0,
        revision=None,
        quantization=None,
        vocab_size=VOCAB,
        context_length=512,
        eos_ids=list(eos_ids),
        synthetic=True,
    )
    return LoadedModel(model or tiny_model(name), tokenizer, record)


def write_checkpoint(folder: Path, name: str = "llama", **config: Any) -> Path:
    """Write a tiny checkpoint in ``mlx-lm``'s format, with a byte tokenizer and no chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), parameters(tiny_model(name)), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({**tiny_config(name), **config}))
    byte_tokenizer().save_pretrained(str(folder))
    return folder
