"""Paths that are wrong, do not do what they claim, or raise: the verdict on their rows, and what the others keep."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.errors import RunError
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import PathRequest, PathRun
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.prompts import Prompt
from tests.faults import FaultyEngine, Heard, here, own_paths, row, run
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.run import ParityOutcome
    from mlxcel_engine.paths import DecodePath, TokenSteps
    from mlxcel_engine.records.evidence import Evidence


def test_a_wrong_projection_diverges_and_the_row_names_index_and_tokens() -> None:
    record = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.3)])
    bad = row(record, "cli", "engine")
    cli, engine = (next(s for s in record.streams if s.path == p) for p in ("cli", "engine"))
    assert bad.verdict == "diverged"
    assert bad.index is not None
    assert cli.ids[: bad.index] == engine.ids[: bad.index]
    assert (bad.left_token, bad.right_token) == (cli.ids[bad.index], engine.ids[bad.index])
    assert bad.left_token != bad.right_token
    assert row(record, "cli", "mlx-server").verdict == "identical"
    assert judge(record.rows).exit_code == 1


def test_a_slightly_wrong_projection_with_equal_ids_is_drift() -> None:
    record = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.03)], n=6)
    bad = row(record, "cli", "engine")
    assert (bad.verdict, bad.index) == ("drift", None)
    assert bad.max_abs_logprob_diff is not None
    assert bad.max_abs_logprob_diff > 2e-3
    assert judge(record.rows, allow_near_tie=True).exit_code == 1


def test_equal_tokens_with_a_wide_bound_are_identical_but_not_bitwise_and_fail_the_gate() -> None:
    record = run(tiny_loaded(), [*own_paths()[:1], FaultyEngine(1.03)], n=6, noise_bound=100.0)
    assert [(r.verdict, r.logits) for r in record.rows] == [("identical", "close")]
    assert judge(record.rows).exit_code == 1


def test_an_eos_that_one_path_ignores_is_found() -> None:
    class Deaf(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            return super().run(tiny_loaded(model=loaded.model), request)

    ids = run(tiny_loaded()).streams[0].ids
    eos = next(i for i in ids[3:] if i not in ids[:3])
    record = run(tiny_loaded(eos_ids=(eos,)), [*own_paths()[:1], Deaf()])
    assert [(r.verdict, r.index) for r in record.rows] == [("diverged", ids.index(eos) + 1)]


def test_a_path_that_cannot_run_the_model_is_not_a_failure_unless_nothing_is_compared() -> None:
    class Unable(EnginePath):
        def unavailable(self, loaded: LoadedModel) -> str | None:
            return "no such kernel"

    record = run(tiny_loaded(), [*own_paths()[:2], Unable()])
    assert [r.verdict for r in record.rows] == ["identical", "n/a"]
    assert "no such kernel" in record.rows[1].reason
    assert judge(record.rows).exit_code == 0
    assert judge(run(tiny_loaded(), [own_paths()[0], Unable()]).rows).exit_code == 3


def test_a_path_that_skips_a_part_of_the_prompt_is_invalid() -> None:
    class Skipping(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            real = super().run(loaded, request)
            return PathRun(
                real.steps, lambda: real.evidence().model_copy(update={"forwarded": len(request.prompt.ids) - 1})
            )

    record = run(tiny_loaded(), [own_paths()[0], Skipping()])
    assert [r.verdict for r in record.rows] == ["invalid"]
    assert "17 forwarded" in record.rows[0].reason
    assert judge(record.rows).exit_code == 1


def test_a_path_that_feeds_other_ids_is_found_by_what_the_model_got() -> None:
    class Swapping(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            ids = request.prompt.ids
            return super().run(loaded, replace(request, prompt=replace(request.prompt, ids=(*ids[1::-1], *ids[2:]))))

    record = run(tiny_loaded(), [own_paths()[0], Swapping()])
    assert [(r.verdict, r.reason) for r in record.rows] == [("invalid", "the prompt ids differ")]


def test_a_prompt_that_goes_through_twice_is_invalid() -> None:
    class Twice(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            run = super().run(loaded, request)

            def steps() -> TokenSteps:
                for step in run.steps:
                    if step.finish_reason is not None:
                        loaded.model(mx.array([request.prompt.ids]))
                        loaded.model(mx.array([request.prompt.ids]))
                    yield step

            return PathRun(steps(), run.evidence)

    record = run(tiny_loaded(), [own_paths()[0], Twice()], n=4)
    assert record.rows[0].verdict == "invalid"
    assert "5 forwards after the prompt for 4 tokens" in record.rows[0].reason


def test_nan_logits_never_pass() -> None:
    loaded = tiny_loaded()
    with pytest.raises(RunError, match="every token is masked or NaN"):
        run(loaded, [own_paths()[0], FaultyEngine(float("nan"))], n=4)
    loaded.model.layers[1].self_attn.o_proj.weight *= float("nan")
    record = run(loaded, own_paths()[:2], n=4)
    assert {r.verdict for r in record.rows} == {"drift"}
    assert judge(record.rows).exit_code == 1


def test_a_crashed_path_is_named() -> None:
    class Crashing(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            def steps() -> TokenSteps:
                yield next(real.steps)
                real.steps.close()
                raise ValueError("broken\npipe")

            real = super().run(loaded, request)
            return PathRun(steps(), real.evidence)

    with pytest.raises(RunError, match=r"path engine failed after 1 tokens \(ValueError: broken pipe\)"):
        run(tiny_loaded(), [Crashing()])
    loaded = tiny_loaded()
    settings = ParityOptions(4, 2048)
    prompt = Prompt("p", "p", (1, 2, 3), chat=False)
    outcome = run_parity(
        here(),
        loaded,
        [Case("greedy", GREEDY)],
        [prompt],
        [Crashing(), *own_paths()[:2]],
        settings,
        Heard(),
        lambda _: None,
    )
    rows = {(r.left, r.right): r for r in outcome.record.rows}
    assert rows["cli", "mlx-server"].verdict == "identical"
    assert rows["cli", "engine"].verdict == "invalid"
    assert "broken pipe" in rows["cli", "engine"].reason


class _Broken(EnginePath):
    """Raises at one place, from the request on that ``when`` names."""

    def __init__(self, where: str, when: str = "always") -> None:
        self.where, self.when = where, when

    def at(self, where: str, request: PathRequest | None = None) -> None:
        now = self.when == "always" or (request is not None and bool(request.sampling.forced))
        if where == self.where and now:
            raise ValueError(f"{where} broke")

    def unavailable(self, loaded: LoadedModel) -> str | None:
        self.at("unavailable")
        return super().unavailable(loaded)

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        self.at("run", request)
        run = super().run(loaded, request)

        def evidence() -> Evidence:
            self.at("evidence", request)
            return run.evidence()

        def claim(seen: Evidence) -> str | None:
            self.at("broken_claim", request)
            return run.broken_claim(seen)

        return PathRun(run.steps, evidence, claim)


@pytest.mark.parametrize("where", ["unavailable", "run", "evidence", "broken_claim"])
def test_a_path_that_raises_anywhere_leaves_the_others_their_rows(where: str) -> None:
    cli, server, _ = own_paths()
    outcome = _outcome([cli, _Broken(where), server])
    rows = {(r.left, r.right): r for r in outcome.record.rows}
    assert rows["cli", "mlx-server"].verdict == "identical"
    assert rows["cli", "engine"].verdict == "invalid"
    assert f"(ValueError: {where} broke)" in rows["cli", "engine"].reason
    (failure,) = outcome.failures
    assert f"ValueError: {where} broke" in failure.__notes__[0]


def test_a_crash_in_the_forced_sweep_is_a_failure_too() -> None:
    outcome = _outcome([own_paths()[0], _Broken("run", "forced")], teacher_forced=True)
    assert [r.verdict for r in outcome.record.rows] == ["identical"]
    assert "run broke" in outcome.record.forced[0].reason
    (failure,) = outcome.failures
    assert "path engine failed after 0 tokens (ValueError: run broke)" in str(failure)
    assert _outcome(own_paths()[::2], teacher_forced=True).failures == ()


def _outcome(paths: list[DecodePath], **options: Any) -> ParityOutcome:
    prompt = Prompt("p", "p", (1, 2, 3), chat=False)
    cases, settings = [Case("greedy", GREEDY)], ParityOptions(4, 2048, **options)
    return run_parity(here(), tiny_loaded(), cases, [prompt], paths, settings, Heard(), lambda _: None)


def test_the_model_is_left_as_it_was() -> None:
    loaded = tiny_loaded()
    kind = type(loaded.model)
    run(loaded)
    assert type(loaded.model) is kind
    with pytest.raises(RunError, match="sequence 0: every token is masked or NaN"):
        run(loaded, [FaultyEngine(float("nan")), *own_paths()[:1]])
    assert type(loaded.model) is kind
    with pytest.raises(RunError, match="stop here"):
        run(loaded, [FaultyEngine(1.3), _Raising()])
    assert type(loaded.model) is kind


class _Raising(EnginePath):
    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        run = super().run(loaded, request)

        def steps() -> TokenSteps:
            next(run.steps)
            run.steps.throw(RuntimeError("stop here"))
            yield from ()

        return PathRun(steps(), run.evidence)
