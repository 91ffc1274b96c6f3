"""Families of dense layers with plain attention caches."""

from __future__ import annotations

from tests.conformance.configs.common import LONG_ROPE, MINISTRAL_ROPE, WINDOW, YARN, Config

_EPS = 1e-5
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GPT: Config = {
    "n_ctx": 512,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 3,
    "n_inner": 48,
    "n_positions": 512,
    "layer_norm_epsilon": _EPS,
}
_GRANITE: Config = {
    "logits_scaling": 2.0,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "mlp_bias": False,
}

DENSE: dict[str, Config] = {
    "llama": {},
    "llama3-rope": {"model_type": "llama", "rope_scaling": _LLAMA3_ROPE},
    "llama-dynamic-rope": {"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "mistral": {},
    "qwen": {"layer_norm_epsilon": _EPS, "kv_channels": 8, "num_key_value_heads": 4},
    "qwen2": {},
    "qwen2-yarn": {"model_type": "qwen2", "rope_scaling": YARN},
    "qwen3": {},
    "mimo": {},
    "phi": {"num_key_value_heads": 4, "layer_norm_eps": _EPS, "partial_rotary_factor": 0.5},
    "phi3": {},
    "phi3-longrope": {"model_type": "phi3", "rope_scaling": LONG_ROPE, "original_max_position_embeddings": 64},
    "phi3small": {
        "vocab_size": 100352,  # it masks its dummy tokens by their real ids; a smaller one is written out of bounds
        "dense_attention_every_n_layers": 2,
        "ff_intermediate_size": 48,
        "gegelu_limit": 20.0,
        "layer_norm_epsilon": _EPS,
        "blocksparse_block_size": 64,
        "blocksparse_num_local_blocks": 1,
        "blocksparse_vert_stride": 2,
    },
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 8.0, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "olmo2": {},
    "openelm": {
        "num_transformer_layers": 3,
        "model_dim": 32,
        "ffn_dim_divisor": 8,
        "num_query_heads": [4, 4, 8],
        "num_kv_heads": [2, 2, 4],
        "ffn_multipliers": [1.0, 1.5, 2.0],
    },
    "cohere": {"layer_norm_eps": _EPS, "logit_scale": 0.5},
    "granite": _GRANITE,
    "glm": {"attention_bias": True},
    "glm4": {"partial_rotary_factor": 0.5},
    "starcoder2": {"norm_epsilon": _EPS},
    "stablelm": {
        "layer_norm_eps": _EPS,
        "partial_rotary_factor": 0.5,
        "use_qkv_bias": True,
        "qk_layernorm": False,
        "use_parallel_residual": False,
    },
    "stablelm-qk-norm": {
        "model_type": "stablelm",
        "layer_norm_eps": _EPS,
        "partial_rotary_factor": 0.5,
        "use_qkv_bias": False,
        "qk_layernorm": True,
        "use_parallel_residual": True,
    },
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gptj": {**_GPT, "rotary_dim": 4},
    "gpt_neox": {"layer_norm_eps": _EPS, "rotary_emb_base": 10000, "rotary_pct": 0.5, "num_key_value_heads": 4},
    "lille-130m": {
        "block_size": 512,
        "layer_norm_eps": _EPS,
        "n_embd": 96,  # the least that its feed-forward width, a multiple of 256, allows
        "n_head": 4,
        "n_kv_heads": 2,
        "n_layer": 3,
    },
    "helium": {"mlp_bias": False},
    "seed_oss": {},
    "ernie4_5": {"use_bias": False},
    "exaone": {"num_layers": 3, "layer_norm_epsilon": _EPS},
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "hunyuan_v1_dense": {"use_qk_norm": True, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    "internlm2": {"bias": False},
    "internlm3": {"bias": False, "qkv_bias": True},
    "minicpm": {"dim_model_base": 16, "scale_depth": 1.4, "scale_emb": 2.0},
    "nanochat": {"num_key_value_heads": 2},
    "nemotron": {"norm_eps": _EPS, "hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        ],
        "num_hidden_layers": 4,
    },
    "plamo": {"num_attention_heads": 4, "n_shared_head": 2},
    "smollm3": {"no_rope_layer_interval": 2},
    "telechat3": {},
    "talkie": {},
    "nanbeige": {"num_loops": 2},
    "ministral3": {"rope_parameters": MINISTRAL_ROPE},
    "exaone4-full": {
        "model_type": "exaone4",
        "rope_scaling": None,
        "sliding_window": None,
        "sliding_window_pattern": None,
    },
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": WINDOW},
    "afm7": {"hidden_dim": 32, "num_layers": 4, "num_kv_reuse_layers": 2, "num_heads": 4, "num_kv_heads": 2},
    "llama4_text": {
        "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 0, 1],
        "use_qk_norm": True,
    },
}
