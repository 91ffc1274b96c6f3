"""``config.json`` of an mlx-lm llama checkpoint from a GGUF file's metadata."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mlxcel_engine.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.loader.gguf_header import GgufHeader

ARCHITECTURE = "llama"
ROPE_FREQS = "rope_freqs.weight"

# The published Llama-3 scaling; a GGUF file keeps only the divisors that it leads to.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192
_LLAMA3_TOLERANCE = 1e-3


def llama_config(header: GgufHeader) -> dict[str, Any]:
    """Return the keys of ``mlx_lm.models.llama.ModelArgs`` that follow from the metadata alone.

    Raises:
        CheckpointError: another architecture, experts, head dimensions that differ, or a missing key.

    """
    architecture = header.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{header.path}: architecture {architecture!r} is not converted: use a {ARCHITECTURE} file"
        )
    experts = header.integer("llama.expert_count", 0)
    if experts > 0:
        raise CheckpointError(f"{header.path}: {experts} experts are not converted: use a dense llama file")
    hidden = header.integer("llama.embedding_length")
    heads = header.integer("llama.attention.head_count")
    if heads < 1:
        raise CheckpointError(f"{header.path}: llama.attention.head_count is {heads}: use an undamaged file")
    rotated = header.integer("llama.rope.dimension_count", hidden // heads)
    head_dim = header.integer("llama.attention.key_length", rotated)
    value_dim = header.integer("llama.attention.value_length", head_dim)
    if not head_dim == rotated == value_dim:
        raise CheckpointError(
            f"{header.path}: head dimension {head_dim}, of which {rotated} rotated, values {value_dim}, is not "
            "converted: use a file in which the three are equal"
        )
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": header.integer("llama.block_count"),
        "intermediate_size": header.integer("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.integer("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": header.number("llama.attention.layer_norm_rms_epsilon"),
        "vocab_size": header.integer("llama.vocab_size", len(header.strings("tokenizer.ggml.tokens"))),
        "max_position_embeddings": header.integer("llama.context_length"),
        "rope_theta": header.number("llama.rope.freq_base", 10000.0),
        "bos_token_id": header.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.integer("tokenizer.ggml.eos_token_id"),
    }


def rope_scaling(header: GgufHeader, divisors: Sequence[float] | None, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return mlx-lm's ``rope_scaling``, or None for a plain rope.

    Args:
        header: of a GGUF file of the llama architecture.
        divisors: the values of the file's ``rope_freqs.weight``, shape [head_dim / 2]; None without one.
        config: what ``llama_config`` made of ``header``.

    Raises:
        CheckpointError: a scaling other than linear, or divisors that are not Llama-3's.

    """
    factor = header.number("llama.rope.scaling.factor", header.number("llama.rope.scale_linear", 1.0))
    kind = header.text("llama.rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{header.path}: llama.rope.scaling.type {kind!r} is not converted: use a file with none or linear"
        )
    if divisors is not None:
        if kind == "linear":
            raise CheckpointError(
                f"{header.path}: linear rope scaling together with {ROPE_FREQS} is not converted: use another file"
            )
        return _llama3_scaling(header, divisors, config)
    if kind == "none":
        return None
    if factor <= 0:
        raise CheckpointError(f"{header.path}: llama.rope.scaling.factor is {factor}: use an undamaged file")
    return {"type": "linear", "factor": factor}


def llama3_divisors(theta: float, head_dim: int, factor: float) -> list[float]:
    """Return what Llama-3's rope scaling divides each of the head_dim / 2 frequencies by.

    Long wavelengths are divided by ``factor``, short ones by 1, those between by a blend that is linear in the
    inverse wavelength (Llama 3.1's published scaling, with low 1, high 4 and original context 8192).
    """
    divisors = []
    for i in range(0, head_dim, 2):
        turns = _LLAMA3_CONTEXT / (2 * math.pi * theta ** (i / head_dim))
        blend = (turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
        blend = min(max(blend, 0.0), 1.0)
        divisors.append(1 / ((1 - blend) / factor + blend))
    return divisors


def _llama3_scaling(header: GgufHeader, divisors: Sequence[float], config: dict[str, Any]) -> dict[str, Any]:
    factor = max(divisors, default=0.0)
    wanted = llama3_divisors(config["rope_theta"], config["head_dim"], factor) if factor > 0 else []
    same = len(wanted) == len(divisors) and all(
        abs(have - want) <= _LLAMA3_TOLERANCE * want for have, want in zip(divisors, wanted, strict=True)
    )
    if not same:
        raise CheckpointError(
            f"{header.path}: {ROPE_FREQS} (largest {factor:g}) is not the llama3 rope scaling over context "
            f"{_LLAMA3_CONTEXT}: use a file without it or with the published scaling"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }
