"""How many bytes a decode step has to read: weights once a step, keys and values of every stream."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from mlxcel_engine.errors import CheckpointError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class ModelFootprint:
    """``step_weight_bytes`` is None where it depends on the tokens, as in a mixture of experts.

    ``kv_bytes(tokens)`` is what the caches of one stream of ``tokens`` tokens hold.
    """

    step_weight_bytes: int | None
    kv_bytes: Callable[[int], int]


def measure_footprint(model: nn.Module) -> ModelFootprint:
    """Read the weights' sizes, and the caches' from a forward of one token.

    Raises:
        CheckpointError: the forward fails, as that of a family does whose kernels this device does not have.

    """
    caches = make_prompt_cache(model)
    try:
        mx.eval(model(mx.zeros((1, 1), dtype=mx.uint32), cache=caches))
    except Exception as error:  # whatever the model's code raises
        message = f"{type(model).__module__}: no forward on this device ({one_line(error)}); take another model"
        raise CheckpointError(message) from error
    kinds = [_growth(cache) for cache in caches]
    return ModelFootprint(step_weight_bytes(model), lambda tokens: sum(kind(tokens) for kind in kinds))


def step_weight_bytes(model: nn.Module) -> int | None:
    """Bytes of all weights that one decode step reads, or None for experts, of which a step reads some.

    An embedding that only looks rows up is not read as a whole; one that is also the output layer is.
    """
    if any(isinstance(part, (SwitchLinear, QuantizedSwitchLinear)) for part in model.modules()):
        return None
    total = _nbytes(model)
    linears = {part.weight.shape[0] for part in model.modules() if isinstance(part, (nn.Linear, nn.QuantizedLinear))}
    for part in model.modules():
        if isinstance(part, (nn.Embedding, nn.QuantizedEmbedding)) and part.weight.shape[0] in linears:
            total -= _nbytes(part)
    return total


def _nbytes(part: nn.Module) -> int:
    weights: dict[str, mx.array] = dict(tree_flatten(part.parameters()))
    return sum(weight.nbytes for weight in weights.values())


def _growth(cache: Any) -> Callable[[int], int]:
    """Return how the bytes of ``cache``, which holds one token, grow with the tokens."""
    if isinstance(cache, CacheList):
        parts = [_growth(part) for part in cache.caches]
        return lambda tokens: sum(part(tokens) for part in parts)
    if not isinstance(cache, (KVCache, RotatingKVCache, ChunkedKVCache)):
        state: Any = tree_flatten(cache.state)
        fixed = sum(array.nbytes for _, array in state if isinstance(array, mx.array))
        return lambda tokens: fixed  # noqa: ARG005 - whatever its length
    if cache.keys is None:  # a layer that reads another one's cache
        return lambda tokens: 0  # noqa: ARG005
    pair: tuple[mx.array, mx.array] = cast("Any", cache).keys_and_values()
    held = pair[0].nbytes + pair[1].nbytes
    window = int(getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", 0) or sys.maxsize)
    return lambda tokens: held * min(tokens, window)
