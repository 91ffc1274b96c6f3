"""What most tiny configs share. A class takes the keys that its arguments name; the others are ignored."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

VOCAB = 300
WINDOW = 8

COMMON: Config = {
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
EXPERTS: Config = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
# The DeepSeek kind of routing: groups, a correction bias, one shared expert, a dense first layer.
ROUTED: Config = {
    **EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
# Multi-head latent attention: low-rank keys and values.
LATENT: Config = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
MINISTRAL_ROPE: Config = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16,
}
# Attention layers of both kinds, in turn.
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
LONG_ROPE: Config = {
    "type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "short_mscale": 1.0,
    "long_mscale": 1.2,
    "original_max_position_embeddings": 64,
}
YARN: Config = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "mscale_all_dim": 0.7}
