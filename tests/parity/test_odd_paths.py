"""Loops of other authors: however they fail and whatever they return, their row says so and the run goes on."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import PathRun
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.prompts import Prompt
from tests.faults import Heard, here, own_paths
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.run import ParityOutcome
    from mlxcel_engine.paths import DecodePath, PathRequest, TokenStep, TokenSteps
    from mlxcel_engine.records.parity import ParityRow

TOKENS = 6


class Changed(EnginePath):
    """The engine path, each of its steps changed."""

    def __init__(self, change: Callable[[int, Any], TokenStep]) -> None:
        self.change = change

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        run = super().run(loaded, request)

        def steps() -> TokenSteps:
            for number, step in enumerate(run.steps):
                yield self.change(number, step)

        return PathRun(steps(), run.evidence)


def outcome(paths: list[DecodePath], **options: Any) -> ParityOutcome:
    prompt = Prompt("p", "p", (1, 2, 3), chat=False)
    settings = ParityOptions(TOKENS, 2048, **options)
    cases = [Case("greedy", GREEDY)]
    return run_parity(here(), tiny_loaded(), cases, [prompt], paths, settings, Heard(), lambda _: None)


def row_of(path: DecodePath, failures: int = 0, **options: Any) -> ParityRow:
    """The row of ``cli`` and ``path``; the gate fails on it, and another path's row is there."""
    cli, server, _ = own_paths()
    result = outcome([cli, path, server], **options)
    rows = {(row.left, row.right): row for row in result.record.rows}
    assert rows["cli", "mlx-server"].verdict == "identical"
    assert len(result.failures) == failures
    row = rows["cli", "engine"]
    assert judge([row], allow_near_tie=True).exit_code == 1
    return row


@pytest.mark.parametrize("error", [SystemExit, CancelledError, ValueError])
def test_whatever_it_raises_does_not_end_the_run(error: type[BaseException]) -> None:
    def change(number: int, step: TokenStep) -> TokenStep:
        if number == 2:
            raise error
        return step  # the engine's own loop, which is under this one, is left where it is

    row = row_of(Changed(change), failures=1)
    assert row.verdict == "invalid"
    assert f"failed after 2 tokens ({error.__name__}" in row.reason


def test_an_endless_loop_of_tokens_is_cut_off() -> None:
    class Endless(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            run = super().run(loaded, request)

            def steps() -> TokenSteps:
                for step in run.steps:
                    yield step
                while True:
                    yield step

            return PathRun(steps(), run.evidence)

    row = row_of(Endless())
    assert (row.verdict, row.reason) == (
        "invalid",
        f"engine: it goes on after the {TOKENS} tokens that it was asked for",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _, step: replace(step, logprobs=step.logprobs[None]), "have the shape (1, 300)"),
        (lambda _, step: replace(step, logprobs=step.logprobs[0]), "have the shape ()"),
        (lambda _, step: replace(step, logprobs=np.array(step.logprobs)), "TypeError"),
        (lambda _, step: replace(step, token=float(step.token)), "TypeError: 'float' object"),
        (lambda _, step: replace(step, text="\ud800"), "UnicodeEncodeError"),
    ],
    ids=["rows of a batch", "a number", "another library's array", "a token that is no integer", "text that is none"],
)
def test_steps_that_are_none_are_named(change: Callable[[int, Any], TokenStep], said: str) -> None:
    row = row_of(Changed(change), failures=1)
    assert row.verdict == "invalid"
    assert said in row.reason


def test_a_finish_reason_that_is_none_is_named() -> None:
    odd: Any = 1
    row = row_of(Changed(lambda _, step: replace(step, finish_reason=step.finish_reason and odd)))
    assert (row.verdict, row.reason) == ("invalid", f"engine: it ended after {TOKENS} tokens without a finish reason")


@pytest.mark.parametrize("count", [10, 200])
def test_fewer_logprobs_than_the_vocabulary_has_are_named(count: int) -> None:
    row = row_of(Changed(lambda _, step: replace(step, logprobs=step.logprobs[:count], token=3)), locate=True)
    assert (row.verdict, row.index) == ("diverged", 0)
    assert row.reason == f"cli has 300 logprobs at that step, engine {count}"


def test_more_logprobs_than_the_vocabulary_has_are_drift() -> None:
    doubled = Changed(lambda _, step: replace(step, logprobs=mx.concatenate([step.logprobs, step.logprobs])))
    assert row_of(doubled, teacher_forced=True).verdict == "drift"


@pytest.mark.parametrize("answer", [False, ""])
def test_what_is_no_reason_does_not_excuse_a_path(answer: Any) -> None:
    class Excused(EnginePath):
        def unavailable(self, loaded: LoadedModel) -> str | None:
            found: str = answer
            return found

    assert f"unavailable() gave {answer!r}" in row_of(Excused(), failures=1).reason


def test_an_error_that_no_file_could_hold_is_spelled_out() -> None:
    def change(number: int, step: TokenStep) -> TokenStep:
        raise OSError("no file \udcff")

    assert "OSError: no file \\udcff" in row_of(Changed(change), failures=1).reason


def test_variants_that_cannot_be_read_are_a_trial_that_failed() -> None:
    class Bare(Changed):
        @property
        def variants(self) -> dict[str, DecodePath]:
            raise ValueError("none left")

    row = row_of(Bare(lambda _, step: replace(step, logprobs=step.logprobs * 1.1)), bisect=True)
    assert row.verdict == "drift"
    assert [(trial.verdict, trial.change) for trial in row.bisected] == [
        ("invalid", "their variants (ValueError: none left)")
    ]
