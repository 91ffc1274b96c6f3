"""A GGUF file of the llama architecture as an mlx-lm checkpoint directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.gguf_config import ROPE_FREQS, llama_config, rope_scaling
from mlxcel_engine.loader.gguf_header import read_header

if TYPE_CHECKING:
    from pathlib import Path

    import mlx.core as mx

    from mlxcel_engine.loader.gguf_header import GgufHeader

CONVERSION_VERSION = 1
"""Part of a converted checkpoint's name in the cache: raise it when the conversion changes its result."""


def convert_gguf(source: Path, out: Path) -> None:
    """Write the llama model in the GGUF file ``source`` as an mlx-lm checkpoint into the directory ``out``.

    Q4_0, Q4_1 and Q8_0 tensors stay quantized, bit for bit; F32 and F16 ones keep their values and dtypes; Q2_K,
    Q4_K and Q6_K ones become float16. Writes ``config.json``, ``generation_config.json``, ``model.safetensors``,
    ``tokenizer.json`` and ``tokenizer_config.json``; ``out`` is made when it is missing.

    Raises:
        CheckpointError: the file is damaged or holds something that is not converted.
        OSError: ``out`` cannot be written.

    """
    # Imported late: the settings that must precede MLX's import are the caller's.
    import mlx.core as mx

    from mlxcel_engine.loader.gguf_tokenizer import write_tokenizer
    from mlxcel_engine.loader.gguf_weights import llama_weights

    header = read_header(source)
    config = llama_config(header)
    tensors = _load_tensors(source)
    divisors = tensors.pop(ROPE_FREQS, None)
    scaling = rope_scaling(header, None if divisors is None else np.array(divisors).ravel().tolist(), config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    weights = llama_weights(tensors, config, source)
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(header, out)
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": _end_ids(header, config)}
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", generation)
    try:
        mx.save_safetensors(out / "model.safetensors", weights, metadata={"format": "mlx"})
    except RuntimeError as error:  # what MLX raises on a full disk
        raise OSError(" ".join(str(error).split())) from error


def _load_tensors(source: Path) -> dict[str, mx.array]:
    import mlx.core as mx

    try:
        tensors = mx.load(source, format="gguf")
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{source}: MLX cannot read it ({reason}): fetch the file again") from error
    return tensors if isinstance(tensors, dict) else {}


def _end_ids(header: GgufHeader, config: dict[str, Any]) -> list[int]:
    """Every id that ends an answer: end of sequence, and end of turn where the file names another one."""
    eos = config["eos_token_id"]
    turn = header.integer("tokenizer.ggml.eot_token_id", eos)
    return sorted({eos, turn})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
