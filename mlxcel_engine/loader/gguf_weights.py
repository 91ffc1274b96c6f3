"""Weights of an mlx-lm llama checkpoint from the tensors of a GGUF file; quantized ones stay as they are."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_LAYER = {**_ATTENTION, **_MLP, **_NORMS}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|scales|biases|bias)")
_HEADS = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}


def unpermute_rows(rows: mx.array, heads: int) -> mx.array:
    """Undo the row order that GGUF gives to the projections of queries and keys.

    Interleaved rope turns rows 2i and 2i+1 of a head together, mlx-lm's half rope rows i and i + head_dim / 2.

    Args:
        rows: weight, scales or biases of shape [heads * head_dim, ...], or a bias [heads * head_dim].
        heads: how many heads the rows are divided among.

    Returns:
        The same rows in half rope's order, same shape and dtype.

    """
    grouped = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return grouped.swapaxes(1, 2).reshape(rows.shape)


def llama_weights(tensors: dict[str, mx.array], config: dict[str, Any], path: Path) -> dict[str, mx.array]:
    """Rename a GGUF llama's ``tensors`` (as ``mx.load`` gives them) to mlx-lm's names and row order.

    Sets in ``config`` what only the tensors tell: ``tie_word_embeddings``, ``attention_bias``, ``mlp_bias`` and,
    when there is a quantized tensor, ``quantization``.

    Raises:
        CheckpointError: a tensor is unknown, missing or has a number of rows that does not fit ``config``.

    """
    weights = {_new_name(name, config, path): tensor for name, tensor in tensors.items()}
    tied = "lm_head.weight" not in weights
    config["tie_word_embeddings"] = tied
    _check_complete(weights, config, path)
    _check_rows(weights, config, path)
    for name, tensor in weights.items():
        for part, key in _HEADS.items():
            if f".{part}." in name:
                weights[name] = unpermute_rows(tensor, config[key])
    layers = range(config["num_hidden_layers"])
    config["attention_bias"] = _fill_biases(weights, list(_ATTENTION.values()), layers)
    config["mlp_bias"] = _fill_biases(weights, list(_MLP.values()), layers)
    quantization = _quantization(weights)
    if quantization:
        config["quantization"] = quantization
    return weights


def _new_name(name: str, config: dict[str, Any], path: Path) -> str:
    match = _NAME.fullmatch(name)
    if match:
        layer, part, kind = match.groups()
        if layer is None and part in _TOP:
            return f"{_TOP[part]}.{kind}"
        if layer is not None and part in _LAYER and int(layer) < config["num_hidden_layers"]:
            return f"model.layers.{int(layer)}.{_LAYER[part]}.{kind}"
    raise CheckpointError(f"{path}: tensor {name} is not one of a llama model: use a plain llama file")


def _check_complete(weights: dict[str, mx.array], config: dict[str, Any], path: Path) -> None:
    layers = range(min(config["num_hidden_layers"], len(weights) + 1))  # a damaged count must not cost gigabytes
    wanted = ["model.embed_tokens", "model.norm"]
    wanted += [f"model.layers.{layer}.{part}" for layer in layers for part in _LAYER.values()]
    for part in wanted:
        if f"{part}.weight" not in weights:
            raise CheckpointError(f"{path}: no tensor for {part}: use a complete file (of a split one, the whole)")


def _check_rows(weights: dict[str, mx.array], config: dict[str, Any], path: Path) -> None:
    rows = {part: config[key] * config["head_dim"] for part, key in _HEADS.items()}
    rows["embed_tokens"] = config["vocab_size"]
    for name, tensor in weights.items():
        for part, wanted in rows.items():
            if f".{part}." in name and tensor.shape[0] != wanted:
                raise CheckpointError(
                    f"{path}: {name} has {tensor.shape[0]} rows, its metadata says {wanted}: use an undamaged file"
                )


def _fill_biases(weights: dict[str, mx.array], parts: list[str], layers: range) -> bool:
    """Give every projection of a group a bias where one has it: mlx-lm has one switch for the group."""
    paths = [f"model.layers.{layer}.{part}" for layer in layers for part in parts]
    if not any(f"{path}.bias" in weights for path in paths):
        return False
    for path in paths:
        rows = weights[f"{path}.weight"].shape[0]
        weights.setdefault(f"{path}.bias", mx.zeros((rows,)))
    return True


def _quantization(weights: dict[str, mx.array]) -> dict[str, Any]:
    """Return the commonest group size and bits, plus an entry for each path that differs; empty if none is.

    GGUF's groups are 32 wide in every format that MLX keeps quantized.
    """
    group = 32
    found = {}
    for name, scales in weights.items():
        path, _, kind = name.rpartition(".")
        if kind == "scales":
            columns = scales.shape[-1] * group
            found[path] = weights[f"{path}.weight"].shape[-1] * 32 // columns
    if not found:
        return {}
    common = Counter(found.values()).most_common(1)[0][0]
    differing = {path: {"group_size": group, "bits": bits} for path, bits in found.items() if bits != common}
    return {"group_size": group, "bits": common, **differing}
