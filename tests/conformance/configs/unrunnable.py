"""Families that do not run under ``generate_step`` on a CPU. A test builds and runs each and expects ``error``."""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.configs.common import ALTERNATING, WINDOW, Config


@dataclass(frozen=True)
class Unrunnable:
    """``reason`` for people; ``error`` is in the message of what the attempt raises."""

    config: Config
    error: str
    reason: str


UNRUNNABLE: dict[str, Unrunnable] = {
    "bitnet": Unrunnable({}, "No Metal back-end", "its ternary linear layers are a Metal kernel"),
    "muse_spark": Unrunnable(
        {
            "text_config": {
                "sliding_window": WINDOW,
                "layer_types": ALTERNATING,
                "post_norm_eps": 1e-5,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                "layer_rope_theta": [10000.0, 0.0, 10000.0],
                "final_logit_softcapping": 20.0,
                "output_multiplier": 1.0,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "moe_hidden_size": 16,
                "moe_intermediate_size": 16,
            }
        },
        "No Metal back-end",
        "its query and key norm with rope is a Metal kernel",
    ),
    "olmo": Unrunnable(
        {"d_model": 32, "n_layers": 3, "mlp_hidden_size": 96, "n_heads": 4, "embedding_size": 300},
        "mlx.core.array and str",
        "it adds the mask to its scores by hand and gets the string `causal`; its import also ends the process "
        "where the package ai2-olmo is missing",
    ),
}

# Modules of mlx_lm.models that are parts of models, not architectures.
PARTS = frozenset(
    {
        "activations",
        "base",
        "bitlinear_layers",
        "cache",
        "gated_delta",
        "mla",
        "pipeline",
        "rope_utils",
        "ssm",
        "switch_layers",
    }
)
