"""Checkpoints of text and vision, or of text under a second name: their text model is what runs."""

from __future__ import annotations

from tests.conformance.configs.common import EXPERTS, Config
from tests.conformance.configs.dense import DENSE
from tests.conformance.configs.experts import EXPERT
from tests.conformance.configs.recurrent import RECURRENT
from tests.conformance.configs.sliding import SLIDING

WRAPPERS: dict[str, Config] = {
    "gemma3": {"text_config": {"model_type": "gemma3_text", **SLIDING["gemma3_text"]}},
    "gemma4": {"text_config": {"model_type": "gemma4_text", **SLIDING["gemma4_text"]}},
    "lfm2-vl": {"text_config": {"model_type": "lfm2", **RECURRENT["lfm2"]}},
    "mistral3": {"text_config": {"model_type": "ministral3", **DENSE["ministral3"]}},
    "mistral3-sliding": {
        "model_type": "mistral3",
        "text_config": {**SLIDING["ministral3-sliding"]},
    },
    "mistral3-llama": {"model_type": "mistral3", "text_config": {"model_type": "mistral"}},
    "mistral3-mistral4": {
        "model_type": "mistral3",
        "text_config": {"model_type": "mistral4", **EXPERT["mistral4"]},
    },
    "pixtral": {"text_config": {"model_type": "mistral"}},
    "qwen2_vl": {"text_config": {"model_type": "qwen2"}},
    "qwen3_vl": {"text_config": {"model_type": "qwen3"}},
    "qwen3_vl_moe": {
        "text_config": {"model_type": "qwen3_moe", **EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": []}
    },
}
