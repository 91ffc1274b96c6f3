"""Checkpoints for measuring speed without a download: published shapes, random 4-bit weights from a seed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from mlxcel_engine.errors import CheckpointError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

PREFIX = "synthetic:"
_GROUP_SIZE, _BITS = 64, 4

# Shapes as the models' authors published them in their config.json.
_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-1.7b": {
        "model_type": "qwen3",
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
    },
}


def synthetic_config(name: str) -> dict[str, Any]:
    """Return the config of ``synthetic:name``.

    Raises:
        CheckpointError: no such name.

    """
    if name not in _CONFIGS:
        raise CheckpointError(
            f"{PREFIX}{name}: no such synthetic checkpoint; give one of {', '.join(sorted(_CONFIGS))}"
        )
    return _CONFIGS[name]


def random_quantized_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Build ``config``'s model with lazy random 4-bit weights (affine, group size 64), the same for the same seed."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    nn.quantize(model, group_size=_GROUP_SIZE, bits=_BITS)
    model.eval()
    keys = iter(mx.random.split(mx.random.key(seed), 2 * len(list(model.modules()))))
    for module in model.modules():
        if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            _randomize(module, next(keys))
    return model


def _randomize(module: nn.QuantizedLinear | nn.QuantizedEmbedding, key: mx.array) -> None:
    """Fill with uniform 4-bit codes around zero, of a spread that keeps activations at their size."""
    width = module.scales.shape[-1] * _GROUP_SIZE
    spread = 4.61 * width**0.5  # a uniform code of 0 to 15 has a standard deviation of 4.61
    halves = mx.random.randint(0, 2**16, (2, *module.weight.shape), dtype=mx.uint32, key=key)
    module.weight = (halves[0] << 16) | halves[1]
    module.scales = mx.full(module.scales.shape, 1 / spread, dtype=mx.float16)
    module.biases = mx.full(module.scales.shape, -7.5 / spread, dtype=mx.float16)


def byte_tokenizer() -> TokenizerWrapper:
    """Return a tokenizer of the 256 bytes, without special tokens, for checkpoints that have none of their own."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=[])
