"""Negative controls: faults of the kinds that engines have, each found at the right index, and by the gate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StepBatch
from mlxcel_engine.engine.kv.detached import CopiedKv
from mlxcel_engine.engine.sampling import ResolvedSampling, SamplingConfig
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.paths import (
    ForwardLog,
    PathRun,
    TokenStep,
    observed_evidence,
    record_forwards,
)
from mlxcel_engine.paths import engine as engine_path
from mlxcel_engine.paths.engine import EnginePath
from tests.faults import LONG, FaultyEngine, beside_cli, found, row
from tests.loaded import tiny_loaded
from tests.tiny import tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import PathRequest, TokenSteps


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
    monkeypatch.setattr(engine_path, "Engine", lambda model, config: real(model, EngineConfig(storage="paged")))
    one = found(beside_cli(EnginePath()))
    assert (one.verdict, one.index) == ("invalid", None)
    assert "not over dense KV: paged, attention calls=" in one.reason


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
