"""How many bytes a decode step has to read: weights once a step, keys and values of every stream."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from mlxcel_engine.errors import CheckpointError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)


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
        with _output_embeddings() as outputs:
            mx.eval(model(mx.zeros((1, 1), dtype=mx.uint32), cache=caches))
    except Exception as error:  # whatever the model's code raises
        message = f"{type(model).__module__}: no forward on this device ({one_line(error)}); take another model"
        raise CheckpointError(message) from error
    kinds = [_growth(cache) for cache in caches]
    return ModelFootprint(step_weight_bytes(model, outputs), lambda tokens: sum(kind(tokens) for kind in kinds))


def step_weight_bytes(model: nn.Module, outputs: Sequence[nn.Module] = ()) -> int | None:
    """Bytes of all weights that one decode step reads, or None for experts, of which a step reads some.

    An embedding that only looks rows up is not read as a whole; one that is also the output layer is. ``outputs`` are
    the embeddings that a forward was seen to use so; without any, one is used so by hand. Of an embedding and a linear
    layer of as many rows, only one is read.
    """
    if any(isinstance(part, (SwitchLinear, QuantizedSwitchLinear)) for part in model.modules()):
        return None
    linears = {part.weight.shape[0] for part in model.modules() if isinstance(part, (nn.Linear, nn.QuantizedLinear))}
    total = _nbytes(model)
    for part in model.modules():
        if isinstance(part, _EMBEDDINGS):
            only_looked_up = bool(outputs) and not any(part is output for output in outputs)
            if only_looked_up or part.weight.shape[0] in linears:
                total -= _nbytes(part)
    return total


@contextmanager
def _output_embeddings() -> Iterator[list[nn.Module]]:
    """Note which embeddings are used as output layers while the context is open."""
    seen: list[nn.Module] = []
    before = {kind: kind.as_linear for kind in _EMBEDDINGS}

    def noting(kind: type[Any]) -> Callable[[Any, mx.array], mx.array]:
        def as_linear(self: Any, x: mx.array) -> mx.array:
            seen.append(self)
            return cast("mx.array", before[kind](self, x))

        return as_linear

    for kind in _EMBEDDINGS:
        setattr(kind, "as_linear", noting(kind))  # noqa: B010 - a method
    try:
        yield seen
    finally:
        for kind, method in before.items():
            setattr(kind, "as_linear", method)  # noqa: B010


def _nbytes(part: nn.Module) -> int:
    weights: dict[str, mx.array] = dict(tree_flatten(part.parameters()))
    return sum(weight.nbytes for weight in weights.values())


def _growth(cache: Any) -> Callable[[int], int]:
    """Return how the bytes of ``cache``, which holds one token, grow with the tokens."""
    if isinstance(cache, CacheList):
        parts = [_growth(part) for part in cache.caches]
        return lambda tokens: sum(part(tokens) for part in parts)
    if not isinstance(cache, (KVCache, RotatingKVCache, ChunkedKVCache, ConcatenateKVCache)):
        state: Any = tree_flatten(cache.state)
        fixed = sum(array.nbytes for _, array in state if isinstance(array, mx.array))
        return lambda tokens: fixed  # noqa: ARG005 - whatever its length
    if cache.keys is None:  # a layer that reads another one's cache
        return lambda tokens: 0  # noqa: ARG005
    pair: tuple[mx.array, mx.array] = cast("Any", cache).keys_and_values()
    held = pair[0].nbytes + pair[1].nbytes
    window = int(getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", 0) or sys.maxsize)
    return lambda tokens: held * min(tokens, window)
