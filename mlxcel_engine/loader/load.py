"""The one loader of all commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mlxcel_engine.errors import CheckpointError, one_line
from mlxcel_engine.loader.evaluate import evaluate_everything
from mlxcel_engine.loader.source import Source, find_source
from mlxcel_engine.loader.synthetic import PREFIX, byte_tokenizer, random_quantized_model, synthetic_config
from mlxcel_engine.records.model import ModelRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mlxcel_engine.loader.cache import CheckpointCache
    from mlxcel_engine.loader.policy import LoadPolicy

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run on the current device, its tokenizer, and what the record says of it."""

    model: nn.Module
    tokenizer: TokenizerWrapper
    record: ModelRecord

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a sequence: the config's and the tokenizer's, merged."""
        return frozenset(self.record.eos_ids)

    def text_of(self, token: int) -> str:
        """The text of one token."""
        return str(self.tokenizer.decode([token]))


def load(
    spec: str,
    policy: LoadPolicy,
    cache: CheckpointCache,
    progress: Callable[[str], None],
    *,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load ``spec`` (``default``, a directory, a .gguf file, a hub id, ``synthetic:NAME``) as ``policy`` says.

    Raises:
        CheckpointError: it cannot be found, fetched, read or built; one line.

    """
    if spec.startswith(PREFIX):
        config = synthetic_config(spec.removeprefix(PREFIX))
        progress(f"making {spec}")
        model, tokenizer, label = random_quantized_model(config), byte_tokenizer(), f"{spec} (random weights)"
        revision = None
    else:
        source = find_source(spec, cache, progress, trust_remote_code=trust_remote_code)
        progress(f"loading {source.label}")
        model, tokenizer, config = _load_directory(source, trust_remote_code)
        label, revision = source.label, source.revision
    apply_policy(model, policy)
    try:
        evaluate_everything(model)
    except RuntimeError as error:
        message = f"{spec}: its weights cannot be evaluated ({one_line(error)}); fetch or convert it anew"
        raise CheckpointError(message) from error
    return LoadedModel(model, tokenizer, _describe(spec, label, revision, model, tokenizer, config))


def _load_directory(source: Source, trust_remote_code: bool) -> tuple[nn.Module, TokenizerWrapper, dict[str, Any]]:
    from mlx_lm.utils import load_model, load_tokenizer

    # Whatever a checkpoint's config or weights provoke in the model code is bad input, whichever exception it is.
    try:
        model, config = load_model(source.directory, lazy=True, trust_remote_code=trust_remote_code)
    except (Exception, SystemExit) as error:  # some model modules exit when a package of theirs is missing
        message = f"{source.spec}: cannot be built as a model ({one_line(error)}); fetch or convert it anew"
        raise CheckpointError(message) from error
    try:
        extra = {"trust_remote_code": trust_remote_code}
        tokenizer = load_tokenizer(source.directory, extra, eos_token_ids=config.get("eos_token_id"))
    except (Exception, SystemExit) as error:
        message = f"{source.spec}: its tokenizer cannot be loaded ({one_line(error)}); fetch its files anew"
        raise CheckpointError(message) from error
    return model, tokenizer, config


def apply_policy(model: nn.Module, policy: LoadPolicy) -> None:
    """Cast floating weights and expand quantized ones, lazily and in place.

    The cast comes first, so that 4-bit codes are expanded with the arithmetic of the target dtype. A weight that
    the model's own ``cast_predicate`` excepts keeps its precision.
    """
    from mlx_lm.utils import dequantize_model

    if policy.dtype is not None:
        target: mx.Dtype = getattr(mx, policy.dtype)
        may_cast = getattr(model, "cast_predicate", None)
        flat: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
        for path, weight in flat.items():
            if mx.issubdtype(weight.dtype, mx.floating) and (may_cast is None or may_cast(path)):
                flat[path] = weight.astype(target)
        model.update(tree_unflatten(list(flat.items())))
    if policy.dequantize:
        dequantize_model(model)


def _describe(
    spec: str,
    label: str,
    revision: str | None,
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    config: dict[str, Any],
) -> ModelRecord:
    weights: list[mx.array] = list(dict(tree_flatten(model.parameters())).values())
    floating = [weight for weight in weights if mx.issubdtype(weight.dtype, mx.floating)]
    quantized = any("scales" in module for module in model.modules())
    quantization = config.get("quantization") or config.get("quantization_config")
    stored_quantized = bool(quantization) or spec.startswith(PREFIX)
    sizes: dict[str, int] = {}
    for weight in floating:
        name = str(weight.dtype).removeprefix("mlx.core.")
        sizes[name] = sizes.get(name, 0) + weight.size
    if not sizes:
        raise CheckpointError(f"{spec}: none of its weights is a floating-point number; convert it anew")
    text_config = config.get("text_config") or {}
    contexts = (settings.get(key) for settings in (config, text_config) for key in _CONTEXT_KEYS)
    return ModelRecord(
        spec=Path(spec).name if Path(spec).exists() else spec,
        label=label,
        architecture=config["model_type"],
        dtype=max(sizes, key=lambda name: sizes[name]),
        weights="quantized" if quantized else "dequantized" if stored_quantized else "unquantized",
        revision=revision,
        quantization=quantization if isinstance(quantization, dict) else None,
        weight_bytes=sum(weight.nbytes for weight in weights),
        vocab_size=config.get("vocab_size") or text_config.get("vocab_size") or len(tokenizer),
        context_length=next((int(value) for value in contexts if isinstance(value, int)), None),
        eos_ids=sorted(tokenizer.eos_token_ids),
        synthetic=spec.startswith(PREFIX),
    )
