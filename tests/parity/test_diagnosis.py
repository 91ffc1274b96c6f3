"""Faults that ``--locate`` finds in their layer and ``--bisect`` in their setting."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine.kv.view import LayerView
from mlxcel_engine.paths import (
    PathRun,
)
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.paths.mlx_lm_batch import MlxLmBatch
from tests.faults import LONG, FaultyEngine, beside_cli, found, scaled_projection
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import PathRequest, TokenSteps


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_perturbed_weight_is_located_in_its_layer(layer: int) -> None:
    one = found(beside_cli(FaultyEngine(1.3, layer), locate=True))
    assert one.verdict == "diverged"
    assert one.located is not None
    assert (one.located.first, one.located.jump) == (f"layer {layer}",) * 2
    assert one.located.step == one.index
    assert [item.layer for item in one.located.layers] == ["layer 0", "layer 1", "layer 2", "logits"]
    assert [item.largest > 0 for item in one.located.layers] == [number >= layer for number in range(4)]


def test_in_batch_noise_the_jump_names_the_layer() -> None:
    class Faulty(MlxLmBatch):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            real = super().run(loaded, request)

            def steps() -> TokenSteps:
                with scaled_projection(loaded.model, 1.05, 1):
                    yield from real.steps

            return PathRun(steps(), real.evidence, real.broken_claim)

    one = found(beside_cli(Faulty(4), locate=True, n=30))
    assert one.located is not None
    assert one.located.jump == "layer 1"


class WrongMask(EnginePath):
    """Chunks after the first see their own later tokens."""

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        real = super().run(loaded, request)

        def steps() -> TokenSteps:
            with pytest.MonkeyPatch.context() as patch:
                right = LayerView.make_mask
                patch.setattr(
                    LayerView,
                    "make_mask",
                    lambda view, length, **rest: None if length > 1 and view.offset else right(view, length, **rest),
                )
                yield from real.steps

        return PathRun(steps(), real.evidence)


def test_a_wrong_chunk_mask_is_found_and_the_chunk_is_what_brings_agreement_back() -> None:
    one = found(beside_cli(WrongMask(), text=LONG, chunk=16, bisect=True))
    assert one.verdict in ("diverged", "drift")
    assert [(trial.side, trial.change, trial.verdict) for trial in one.bisected] == [
        ("both", "the prompt in one chunk", "identical")
    ]
    assert beside_cli(WrongMask(), text=LONG).rows[0].verdict == "identical"


@contextmanager
def wrong_when_shared(model: Any) -> Iterator[None]:
    """The model's logits are off in every forward of more than one row."""
    kind = type(model)

    def call(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        logits: mx.array = kind.__call__(self, inputs, *args, **kwargs)
        return mx.concatenate([logits[..., 1:], logits[..., :1]], axis=-1) if inputs.shape[0] > 2 else logits

    model.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    try:
        yield
    finally:
        model.__class__ = kind


def test_a_fault_of_wide_batches_is_bisected_to_the_width() -> None:
    loaded = tiny_loaded()
    with wrong_when_shared(loaded.model):
        one = found(beside_cli(MlxLmBatch(4), loaded=loaded, bisect=True, n=30))
    assert one.verdict == "diverged"
    assert one.index is not None
    assert max(one.differences[: one.index]) < 1e-4
    assert one.differences[one.index] > 1
    assert [(trial.change, trial.verdict) for trial in one.bisected] == [
        ("batch width 3", "diverged"),
        ("batch width 2", "identical"),
    ]
