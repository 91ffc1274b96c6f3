"""Families of expert layers with plain attention caches, latent attention among them."""

from __future__ import annotations

from tests.conformance.configs.common import EXPERTS, LATENT, LONG_ROPE, ROUTED, YARN, Config

_LOCAL: Config = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SPARSE: Config = {**EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": [0], "shared_expert_intermediate_size": 16}
_GRANITE: Config = {
    "logits_scaling": 2.0,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
}
_LONGCAT: Config = {
    **LATENT,
    **ROUTED,
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "ffn_hidden_size": 48,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 16,
    "zero_expert_num": 2,
    "num_layers": 2,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
_INDEXER: Config = {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 8}
_TEXT_LATENT: Config = {"text_config": {**LATENT, **ROUTED}}

EXPERT: dict[str, Config] = {
    "mixtral": _LOCAL,
    "phimoe": {**_LOCAL, "rope_scaling": LONG_ROPE},
    "phixtral": {"num_vocab": 300, "model_dim": 32, "num_heads": 4, "num_layers": 3, "rotary_dim": 4, **_LOCAL},
    "qwen2_moe": _SPARSE,
    "qwen3_moe": {**_SPARSE, "mlp_only_layers": []},
    "olmoe": EXPERTS,
    "dbrx": {
        "d_model": 32,
        "n_layers": 3,
        "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "Klear": {**ROUTED, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
    "bailing_moe": {**ROUTED, "use_qk_norm": True, "moe_router_enable_expert_bias": True, "score_function": "sigmoid"},
    "deepseek": ROUTED,
    "dots1": ROUTED,
    "ernie4_5_moe": {
        "use_bias": False,
        "moe_num_experts": 4,
        "moe_layer_start_index": 1,
        "moe_intermediate_size": 16,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
    },
    "glm4_moe": {**ROUTED, "rope_scaling": None, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "solar_open": {**ROUTED, "partial_rotary_factor": 0.5},
    "granitemoe": {**_GRANITE, **_LOCAL},
    "hunyuan": {
        "moe_topk": 2,
        "num_experts": 4,
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 4,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    },
    "minimax": {**_LOCAL, "shared_intermediate_size": 16, "rotary_dim": 4},
    "minimax_m3_vl": {
        "text_config": {
            **_LOCAL,
            "num_hidden_layers": 3,
            "dense_intermediate_size": 48,
            "intermediate_size": 16,
            "shared_intermediate_size": 16,
            "rotary_dim": 4,
            "moe_layer_freq": [0, 1, 1],
            "index_n_heads": 2,
            "index_head_dim": 8,
            "index_block_size": 4,
            "index_topk_blocks": 2,
            "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"],
        }
    },
    # Latent attention.
    "minicpm3": {**LATENT, "rope_scaling": LONG_ROPE, "dim_model_base": 16, "scale_depth": 1.4, "scale_emb": 2.0},
    "deepseek_v2": {**LATENT, **ROUTED, "topk_method": "gready", "rope_scaling": YARN},
    "deepseek_v3": {**LATENT, **ROUTED},
    "deepseek_v32": {**LATENT, **ROUTED, **_INDEXER},
    "glm_moe_dsa": {
        **LATENT,
        **ROUTED,
        **_INDEXER,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "glm4_moe_lite": {**LATENT, **ROUTED},
    "kimi_vl": _TEXT_LATENT,
    "kimi_k25": _TEXT_LATENT,
    "mistral4": {
        **LATENT,
        **ROUTED,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": {**_LONGCAT, "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 3, "emb_split_num": 2},
    "youtu_llm": LATENT,
}
