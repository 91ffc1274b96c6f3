"""Tiny random models built with mlx-lm's own model classes: no weights, no download."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from tests.conformance.configs import CONFIGS, VOCAB, tiny_config

if TYPE_CHECKING:
    import mlx.nn as nn

# Families whose rounding noise would come near the tolerance with larger weights.
SPREADS = dict.fromkeys(("ernie4_5", "gemma", "kimi_k3", "nanbeige", "nemotron", "phi3-longrope"), 2.0)

__all__ = ["CONFIGS", "VOCAB", "parameters", "tiny_config", "tiny_model"]

# mlx-lm's olmo module only asks whether this package is there, and leaves the process if it is not.
sys.modules.setdefault("hf_olmo", ModuleType("hf_olmo"))


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """The model's parameters by their dotted paths."""
    return dict(tree_flatten(model.parameters()))


def tiny_model(name: str, seed: int = 0, spread: float | None = None) -> nn.Module:
    """A tiny random float32 model; ``spread`` scales its weights so that logits tell tokens apart.

    What a class leaves at zero (heads, gates, biases, packed weights) becomes random too: at zero it would hide
    what comes before it.
    """
    factor = SPREADS.get(name, 3.0) if spread is None else spread
    mx.random.seed(seed)
    config = tiny_config(name)
    model_class, args_class = _get_classes(config)
    model: nn.Module = model_class(args_class.from_dict(config))
    model.eval()
    drawn = {path: _random_like(value) for path, value in parameters(model).items() if not mx.any(value).item()}
    model.update(tree_unflatten(list(drawn.items())))
    model.apply(
        lambda weight: weight * factor if weight.ndim > 1 and mx.issubdtype(weight.dtype, mx.floating) else weight
    )
    mx.eval(model.parameters())
    return model


def _random_like(value: mx.array) -> mx.array:
    if mx.issubdtype(value.dtype, mx.floating):
        return (0.1 * mx.random.normal(value.shape)).astype(value.dtype)
    return mx.random.randint(0, 2**31 - 1, list(value.shape)).astype(value.dtype)
