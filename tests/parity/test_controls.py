"""Negative controls: faults of the kinds that engines have, each found at the right index, and by the gate."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StepBatch
from mlxcel_engine.engine.kv.detached import CopiedKv
from mlxcel_engine.engine.kv.view import LayerView
from mlxcel_engine.engine.sampling import ResolvedSampling, SamplingConfig
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.paths import (
    ForwardLog,
    PathRun,
    TokenStep,
    observed_evidence,
    path_makers,
    record_forwards,
)
from mlxcel_engine.paths import engine as engine_path
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.paths.mlx_lm_batch import MlxLmBatch
from tests.faults import FaultyEngine, row, run, scaled_projection
from tests.loaded import tiny_loaded
from tests.tiny import tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath, PathRequest, TokenSteps
    from mlxcel_engine.records.parity import ParityRecord, ParityRow

LONG = "two roads diverged in a yellow wood, and sorry I could not travel both"


def beside_cli(path: DecodePath, **options: Any) -> ParityRecord:
    return run(options.pop("loaded", None) or tiny_loaded(), [path_makers(4)["cli"](), path], **options)


def found(record: ParityRecord) -> ParityRow:
    """The only row; the gate fails on it, and a near-tie that is let through does not help."""
    (one,) = record.rows
    assert judge(record.rows, allow_near_tie=True).exit_code == 1
    return one


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


class StaleBlock(EnginePath):
    """Adopts the KV of a prompt's first 48 tokens; tokens ``stale`` of it come from another prompt."""

    name = "cache-hit"

    def __init__(self, stale: slice | None) -> None:
        self.stale = stale

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        log = ForwardLog(len(request.prompt.ids), adopted=48)
        engine = Engine(loaded.model)

        def kept(ids: tuple[int, ...]) -> CopiedKv:
            sequence = engine.open(SequenceSpec(ids))
            for piece in engine.plan(sequence).pieces:
                engine.prefill(sequence, piece)
            prefix = engine.snapshot(sequence, 48)
            assert isinstance(prefix, CopiedKv)
            engine.close(sequence)
            return prefix

        def steps() -> TokenSteps:
            prefix, other = kept(request.prompt.ids), kept(request.prompt.ids[::-1])
            for mine, wrong in zip(prefix.layers, other.layers, strict=True):
                if self.stale is not None and mine is not None and wrong is not None:
                    mine[0][..., self.stale, :], mine[1][..., self.stale, :] = (
                        wrong[0][..., self.stale, :],
                        wrong[1][..., self.stale, :],
                    )
            sequence = engine.open(SequenceSpec(request.prompt.ids), prefix)
            with record_forwards(loaded.model, log, request.probe):
                for piece in engine.plan(sequence).pieces:
                    engine.prefill(sequence, piece)
                for count in range(1, request.max_tokens + 1):
                    (output,) = engine.step(StepBatch((sequence,))).rows
                    finish = "length" if count == request.max_tokens else None
                    yield TokenStep(output.token, output.logprobs, str(output.token), finish)

        def evidence() -> Any:
            return observed_evidence(log, request, "dense", engine.counters.attention_calls, [], prompt_cache=True)

        return PathRun(steps(), evidence)


def test_a_stale_block_of_the_cache_is_found_and_a_right_one_is_not() -> None:
    streams = {}
    for stale in (None, slice(16, 32)):
        record = beside_cli(StaleBlock(stale), text=LONG)
        cli, hit = record.streams
        streams[stale is None] = (record.rows[0], cli.ids, hit.ids)
        assert hit.evidence is not None
        assert (hit.evidence.adopted, hit.evidence.forwarded) == (48, len(LONG) - 48)
        assert hit.evidence.partition[0][0] == 48
    right, wrong = streams[True], streams[False]
    assert right[1] == right[2]
    assert right[0].max_abs_logprob_diff is not None
    assert right[0].max_abs_logprob_diff < 1e-4
    first = next(i for i, (a, b) in enumerate(zip(wrong[1], wrong[2], strict=True)) if a != b)
    assert (wrong[0].verdict, wrong[0].index) == ("diverged", first)


class Unpenalized(EnginePath):
    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        config = request.sampling.config.model_copy(update={"repeat_penalty": 1.0})
        return super().run(loaded, replace(request, sampling=replace(request.sampling, config=config)))


def test_a_skipped_penalty_is_found_at_the_first_step_that_it_changes() -> None:
    sampling = ResolvedSampling(SamplingConfig(repeat_penalty=1.3))
    record = beside_cli(Unpenalized(), cases=[Case("penalized", sampling)], n=32)
    one = found(record)
    assert one.verdict in ("diverged", "drift")
    assert one.differences[0] > 2e-3  # the prompt's tokens are penalized from the first step on


def test_a_skipped_filter_of_a_seeded_draw_took_what_is_not_its_best() -> None:
    class Unfiltered(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            config = request.sampling.config.model_copy(update={"top_k": 0})
            return super().run(loaded, replace(request, sampling=replace(request.sampling, config=config)))

    sampling = ResolvedSampling(SamplingConfig(temperature=2.0, top_k=2, seed=1))
    one = found(beside_cli(Unfiltered(), cases=[Case("seeded", sampling)]))
    assert one.verdict == "diverged"
    assert one.logits == "bitwise"
    assert "engine took a token that is not its own best" in one.reason


class OffByOne(EnginePath):
    """Ends one token before its time."""

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        real = super().run(loaded, request)

        def steps() -> Iterator[TokenStep]:
            held = None
            for step in real.steps:
                if step.finish_reason is not None and held is not None:
                    yield replace(held, finish_reason=step.finish_reason)
                    return
                if held is not None:
                    yield held
                held = step

        def evidence() -> Any:
            seen = real.evidence()
            return seen.model_copy(update={"decode_forwards": seen.decode_forwards - 1})

        return PathRun((step for step in steps()), evidence)


def test_an_end_one_token_early_diverges_at_its_length() -> None:
    ids = beside_cli(EnginePath()).streams[0].ids
    eos = next(i for i in ids[3:] if i not in ids[:3])
    at = ids.index(eos)
    one = found(beside_cli(OffByOne(), loaded=tiny_loaded(eos_ids=(eos,))))
    assert (one.verdict, one.index, one.left_token, one.right_token) == ("diverged", at, eos, None)
    assert one.reason == f"cli goes on after {at} tokens"


def test_a_path_that_returns_nothing_is_invalid() -> None:
    class Nothing(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            real = super().run(loaded, request)

            def steps() -> TokenSteps:
                yield from ()

            return PathRun(steps(), real.evidence)

    one = found(beside_cli(Nothing()))
    assert (one.verdict, one.reason) == ("invalid", "engine: 0 forwarded + 0 adopted prompt tokens, not 18")


def test_another_storage_than_the_name_claims_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Engine
    monkeypatch.setattr(engine_path, "Engine", lambda model: real(model, EngineConfig(storage="paged")))
    one = found(beside_cli(EnginePath()))
    assert (one.verdict, one.index) == ("invalid", None)
    assert "not over dense KV: paged, attention calls=" in one.reason


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


def test_rounding_at_a_constructed_tie_is_a_near_tie() -> None:
    model: Any = tiny_model("llama")
    ids = beside_cli(EnginePath(), loaded=tiny_loaded(model=model)).streams[0].ids
    at = next(i for i in range(4, 20) if ids[i] not in ids[:i] and ids[i] > 0)
    head = model.model.embed_tokens  # tied
    rival = next(i for i in range(ids[at]) if i not in ids and i not in b"two roads diverged")
    weight = mx.array(head.weight)
    weight[rival] = weight[ids[at]]
    head.weight = weight

    class Rounding(FaultyEngine):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            real = super().run(loaded, request)

            def steps() -> TokenSteps:
                nudged = mx.array(weight)
                nudged[rival] = nudged[rival] * (1 - 1e-6)
                head.weight = nudged
                yield from real.steps

            return PathRun(steps(), real.evidence)

    record = beside_cli(Rounding(1 + 1e-4), loaded=tiny_loaded(model=model))
    one = row(record, "cli", "engine")
    assert (one.verdict, one.index) == ("near-tie", at)
    assert (one.left_token, one.right_token) == (rival, ids[at])
    assert one.left_gap is not None
    assert one.max_abs_logprob_diff is not None
    assert one.left_gap <= 2 * one.max_abs_logprob_diff
    assert judge(record.rows).exit_code == 1
