"""Which model families run batched over our KV storage, and why the others are stepped row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlx_lm.models.cache import KVCache, make_prompt_cache

if TYPE_CHECKING:
    import mlx.nn as nn

# Proven equal to `generate_step`, alone and in a ragged batch, by tests/engine/test_families.py.
BATCHED_FAMILIES = frozenset({"glm4", "granite", "llama", "olmo2", "qwen2", "qwen3", "qwen3_moe", "mixtral"})


@dataclass(frozen=True)
class FamilySupport:
    """``batched``: one forward for all rows over our KV; else row by row on ``mlx-lm``'s caches, for ``reason``."""

    family: str
    layers: int
    batched: bool
    reason: str


def family_support(model: nn.Module) -> FamilySupport:
    """Decide how ``model`` is stepped, by its module in ``mlx-lm`` and the caches that it asks for."""
    module = type(model).__module__
    family = module.rpartition(".")[2]
    caches = make_prompt_cache(model)
    own = sorted({type(cache).__name__ for cache in caches if type(cache) is not KVCache})
    if own:
        reason = f"its layers keep {', '.join(own)}"
    elif not module.startswith("mlx_lm.models.") or family not in BATCHED_FAMILIES:
        reason = f"{family} is not proven equal in a batch"
    else:
        return FamilySupport(family, len(caches), True, "")
    return FamilySupport(family, len(caches), False, f"row by row: {reason}")
