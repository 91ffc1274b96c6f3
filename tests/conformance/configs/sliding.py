"""Families that mix full attention with a sliding window of eight tokens."""

from __future__ import annotations

from tests.conformance.configs.common import ALTERNATING, EXPERTS, MINISTRAL_ROPE, ROUTED, VOCAB, WINDOW, Config

_WINDOW: Config = {"sliding_window": WINDOW, "layer_types": ALTERNATING}
_ROPE_BY_TYPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
_GEMMA4: Config = {
    "num_hidden_layers": 6,
    "head_dim": 8,
    "global_head_dim": 16,
    "vocab_size_per_layer_input": VOCAB,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}

SLIDING: dict[str, Config] = {
    "llama-sliding": {"model_type": "llama", **_WINDOW, "layer_types": ALTERNATING[1:] + ALTERNATING[1:2]},
    "gemma3_text": {"query_pre_attn_scalar": 8.0, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gemma3n": {
        "text_config": {
            "model_type": "gemma3n_text",
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "sliding_window": WINDOW,
            "rope_local_base_freq": 1000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
            "hidden_size_per_layer_input": 8,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        }
    },
    "gemma4_text": _GEMMA4,
    "gear": {
        "tie_word_embeddings": False,
        **_WINDOW,
        "layer_types": ["sliding_attention", "conv_mixer", "full_attention"],
    },
    "cohere2": {"layer_norm_eps": 1e-5, "logit_scale": 0.5, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "exaone4": {"rope_scaling": None, "sliding_window": WINDOW, "sliding_window_pattern": "LG"},
    "exaone_moe": {**ROUTED, **_WINDOW, "is_moe_layer": [False, True, True]},
    "gpt_oss": {
        **_WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
    "ministral3-sliding": {"model_type": "ministral3", **_WINDOW, "rope_parameters": MINISTRAL_ROPE},
    "olmo3": _WINDOW,
    "afmoe": {
        "tie_word_embeddings": False,
        **ROUTED,
        **_WINDOW,
        "num_dense_layers": 1,
        "route_norm": True,
        "route_scale": 1.5,
    },
    "baichuan_m1": {
        "tie_word_embeddings": False,
        "sliding_window": WINDOW,
        "sliding_window_layers": [0, 2],
        "conv_window": 2,
    },
    "laguna": {
        **EXPERTS,
        **_WINDOW,
        "gating": True,
        "rope_parameters": _ROPE_BY_TYPE,
        "num_attention_heads_per_layer": [4, 4, 4],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "shared_expert_intermediate_size": 16,
    },
    "llama4": {
        "text_config": {
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
            "model_type": "llama4_text",
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
    "mellum": {**EXPERTS, **_WINDOW, "rope_parameters": _ROPE_BY_TYPE},
    "mimo_v2_flash": {
        **ROUTED,
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 1000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "swa_v_head_dim": 8,
        "v_head_dim": 8,
        "partial_rotary_factor": 0.5,
    },
    "muse_glimmer": {**_WINDOW, "output_multiplier": 1.0, "layer_rope_theta": [10000.0, 0.0, 10000.0]},
    "plamo3": {"tie_word_embeddings": False, "window_size": WINDOW, "sliding_window_pattern": 2},
    "spark2_5": {**_WINDOW, "rope_parameters": _ROPE_BY_TYPE},
    "step3p5": {
        **_WINDOW,
        "num_attention_groups": 2,
        "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 1},
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "moe_intermediate_size": 16,
        "share_expert_dim": 16,
        "moe_layers_enum": "1,2",
        "yarn_only_types": ["full_attention"],
        "partial_rotary_factors": [1.0, 0.5, 1.0],
    },
}
