"""Tiny random models built with mlx-lm's own model classes: no weights, no download."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

if TYPE_CHECKING:
    import mlx.nn as nn

VOCAB = 300

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3-rope": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-sliding": {
        "model_type": "llama",
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {**_MOE, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "granite": {
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7,
        "mlp_bias": False,
    },
    "gemma2": {
        "query_pre_attn_scalar": 8.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 8,
    },
    "stablelm": {
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "use_qkv_bias": True,
        "qk_layernorm": False,
        "use_parallel_residual": False,
    },
    "lfm2": {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_multiple_of": 8,
        "block_ff_dim": 48,
        "block_dim": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
    },
}


def tiny_config(name: str) -> dict[str, Any]:
    """The config of a tiny model of the family ``name``."""
    return {"model_type": name, **_COMMON, **CONFIGS[name]}


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """The model's parameters by their dotted paths."""
    return dict(tree_flatten(model.parameters()))


def tiny_model(name: str, seed: int = 0, spread: float = 3.0) -> nn.Module:
    """A tiny random float32 model; ``spread`` scales its weights so that logits tell tokens apart."""
    mx.random.seed(seed)
    config = tiny_config(name)
    model_class, args_class = _get_classes(config)
    model: nn.Module = model_class(args_class.from_dict(config))
    model.eval()
    model.apply(lambda weight: weight * spread if weight.ndim > 1 else weight)
    mx.eval(model.parameters())
    return model
