"""Which model families run batched over our KV storage, and why the others are stepped row by row."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from mlxcel_engine.preload import PRELOAD

PAIRED_FEATURES = 1536
"""Input features up to which MKL multiplies two rows faster than one: a model of 576 and 1536 decodes 1.15 as fast in
pairs, one product with 2048 features took 2.1 to 3.0 times as long (two cores of an AMD EPYC)."""

# Equal to `generate_step` alone and in batches: docs/families.md is the proof, tests/conformance holds this set to it.
# fmt: off
BATCHED_FAMILIES = frozenset({
    "Klear", "apertus", "bailing_moe", "cohere", "dbrx", "deepseek", "deepseek_v2", "dots1", "ernie4_5",
    "ernie4_5_moe", "exaone", "exaone4", "gemma", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gptj", "granite",
    "granitemoe", "granitemoehybrid", "helium", "hunyuan", "hunyuan_v1_dense", "internlm2", "internlm3", "lille-130m",
    "llama", "llama4_text", "mimo", "minicpm", "minicpm3", "minimax", "ministral3", "mistral3", "mixtral", "nanbeige",
    "nanochat", "nemotron", "nemotron-nas", "olmo2", "olmoe", "openelm", "phi", "phi3", "phimoe", "phixtral",
    "pixtral", "qwen", "qwen2", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "seed_oss",
    "smollm3", "starcoder2", "talkie", "telechat3", "youtu_llm",
})
# fmt: on

# Families on plain KV caches whose attention a batched view cannot stand in for: what their code does.
NOT_BATCHED = {
    "afm7": "it reads another layer's cache",
    "deepseek_v3": "it uses the latent keys outside the attention call",
    "gemma2": "it attends by hand",
    "glm4_moe_lite": "it uses the latent keys outside the attention call",
    "gpt_bigcode": "it expects one offset for all rows",
    "mistral4": "it uses the latent keys outside the attention call",
    "phi3small": "its block-sparse layers attend by hand",
    "plamo": "it alters the keys after the cache returned them",
    "stablelm": "it alters the keys after the cache returned them",
}


@dataclass(frozen=True)
class PagedSupport:
    """``ok``: the model decodes over paged KV; else ``reason`` says why it cannot."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class FamilySupport:
    """``batched``: one forward for all rows over our KV; else row by row on ``mlx-lm``'s caches, for ``reason``.

    ``tokens`` is how many ids its largest embedding has; 0 without one.
    """

    family: str
    layers: int
    tokens: int
    batched: bool
    reason: str

    @property
    def paged(self) -> PagedSupport:
        """See :func:`supports_paged_decode`."""
        return PagedSupport(self.batched, "" if self.batched else f"it runs {self.reason}")


def family_support(model: nn.Module) -> FamilySupport:
    """Decide how ``model`` is stepped, by the architectures in it and the caches that it asks for."""
    family = type(model).__module__.rpartition(".")[2]
    caches = make_prompt_cache(model)
    own = sorted({type(cache).__name__ for cache in caches if type(cache) is not KVCache})
    reason = f"its layers keep {', '.join(own)}" if own else _obstacle(model)
    embeddings = [part for part in model.modules() if isinstance(part, (nn.Embedding, nn.QuantizedEmbedding))]
    tokens = max((part.weight.shape[0] for part in embeddings), default=0)
    if reason is None:
        return FamilySupport(family, len(caches), tokens, True, "")
    return FamilySupport(family, len(caches), tokens, False, f"row by row: {reason}")


def supports_paged_decode(model: nn.Module) -> PagedSupport:
    """Say whether ``model`` can decode over paged KV, and if not, why: what :class:`Engine` decides by."""
    return family_support(model).paged


def multiplies_row_by_row(model: nn.Module) -> bool:
    """Whether every matrix of ``model`` is quantized: on a CPU, MLX multiplies by such a one row by row."""
    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
    weighty = _matrices(model)
    return bool(weighty) and all(isinstance(part, kinds) for part in weighty)


def multiplies_faster_in_pairs(model: nn.Module) -> bool:
    """Whether a token goes through ``model`` faster beside another one, on a CPU.

    So it is with MKL and float32 matrices of few input features. With many of them two rows take twice the time of one
    and more. Not where each row chooses its experts, and reads them.
    """
    narrow = all(
        part["weight"].dtype == mx.float32 and part["weight"].shape[-1] <= PAIRED_FEATURES for part in _matrices(model)
    )
    return PRELOAD.blas == "mkl" and narrow and not any(isinstance(part, SwitchLinear) for part in model.modules())


def _matrices(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if "weight" in part and part["weight"].ndim > 1]


def architectures(model: nn.Module) -> frozenset[str]:
    """Return the families whose modules define a part of ``model``: its own, and that of a text model inside."""
    names = {type(part).__module__ for part in model.modules()}
    return frozenset(name.rpartition(".")[2] for name in names if hasattr(sys.modules[name], "ModelArgs"))


def _obstacle(model: nn.Module) -> str | None:
    """Return why a model on plain KV caches cannot be batched, or None."""
    found = architectures(model)
    unproven = sorted(found - BATCHED_FAMILIES)
    known = [NOT_BATCHED[name] for name in unproven if name in NOT_BATCHED]
    if known:
        return known[0]
    if unproven or not type(model).__module__.startswith("mlx_lm.models."):
        return f"{', '.join(unproven) or type(model).__module__} is not proven equal in a batch"
    for part in model.modules():
        if getattr(part, "use_sliding", False):
            return "its sliding layers keep plain caches"
        if type(part).__name__ == "DynamicNTKScalingRoPE":
            return "its dynamic rope expects one offset for all rows"
    return None
