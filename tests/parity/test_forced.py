"""Teacher forcing: every path is fed the same tokens, and every step is compared."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from mlxcel_engine.engine import Engine, SequenceSpec, StepBatch
from mlxcel_engine.engine.sampling import GREEDY, ResolvedSampling, SamplingConfig
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.forced import compare_forced, measure_step
from mlxcel_engine.parity.stream import Stream
from mlxcel_engine.paths import PathRequest, path_makers
from mlxcel_engine.prompts import Prompt
from tests.faults import FaultyEngine, own_paths, run
from tests.loaded import tiny_loaded
from tests.parity.reference import Row

PROMPT = Prompt("p", "", (1, 5, 9, 7), chat=False)
FORCED = (11, 12, 0, 11, 13)
SEEDED = ResolvedSampling(SamplingConfig.seeded(3))


def log(*values: float) -> Row:
    with np.errstate(divide="ignore"):
        return np.log(np.array(values, dtype=np.float32))


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_every_path_takes_the_forced_tokens_and_draws_the_rest(sampling: ResolvedSampling) -> None:
    loaded = tiny_loaded()
    forced = replace(sampling, forced=FORCED)
    runs = {}
    for name, make in path_makers(4).items():
        steps = list(make().run(loaded, PathRequest(PROMPT, 8, 2048, forced)).steps)
        runs[name] = [step.token for step in steps]
        assert tuple(runs[name][: len(FORCED)]) == FORCED
    assert len({tuple(ids) for ids in runs.values()}) == 1
    # after the forced tokens a path goes on as if it had generated them itself
    longer = Prompt("p", "", (*PROMPT.ids, *FORCED), chat=False)
    (first, *_) = path_makers(4)["cli"]().run(loaded, PathRequest(longer, 1, 2048, GREEDY)).steps
    assert sampling is SEEDED or runs["cli"][len(FORCED)] == first.token


def test_rows_of_one_step_are_forced_each_to_its_own_and_can_be_taken_back() -> None:
    engine = Engine(tiny_loaded().model)
    samplings = [replace(GREEDY, forced=(5, 6)), GREEDY, replace(SEEDED, forced=(0,))]
    ids = [engine.open(SequenceSpec((3,), sampling)) for sampling in samplings]
    first = [row.token for row in engine.step(StepBatch(tuple(ids))).rows]
    second = [row.token for row in engine.step(StepBatch(tuple(ids))).rows]
    assert (first[0], first[2], second[0]) == (5, 0, 6)
    engine.unwind(ids[0], 2)
    assert engine.step(StepBatch((ids[0],))).rows[0].token == 5


def test_a_forced_run_compares_on_after_the_first_divergence() -> None:
    record = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.3)], teacher_forced=True, n=30)
    server, faulty = record.forced
    assert (server.reference, server.steps, server.max_abs_logprob_diff, server.top1_agreement) == ("cli", 30, 0.0, 1.0)
    assert record.rows[1].index is not None
    assert record.rows[1].index < 20
    assert faulty.steps == 30
    assert faulty.top1_agreement is not None
    assert 0 < faulty.top1_agreement < 1
    assert faulty.max_abs_logprob_diff is not None
    assert faulty.mean_abs_logprob_diff is not None
    assert faulty.max_abs_logprob_diff > faulty.mean_abs_logprob_diff > 0
    assert faulty.kl_max is not None
    assert faulty.kl_mean is not None
    assert faulty.kl_max >= faulty.kl_mean > 0
    assert run(tiny_loaded(), n=4).forced == []


def test_penalties_follow_the_forced_tokens() -> None:
    cases = [Case("seeded", SEEDED)]
    record = run(tiny_loaded(), [*own_paths(), path_makers(3)["mlx-batch-3"]()], cases=cases, teacher_forced=True)
    assert [row.top1_agreement for row in record.forced] == [1.0] * 3
    assert max(row.max_abs_logprob_diff or 0 for row in record.forced) < 1e-3


def test_a_step_by_hand() -> None:
    step = measure_step(log(0.5, 0.25, 0.25), log(0.25, 0.5, 0.25))
    assert step.largest == pytest.approx(np.log(2))
    assert step.mean == pytest.approx(2 * np.log(2) / 3)
    assert step.kl == pytest.approx(0.5 * np.log(2) - 0.25 * np.log(2))
    assert not step.same_top


def test_a_step_equals_itself_and_infinities_count_where_they_are_one_sided() -> None:
    row = log(0.5, 0.5, 0.0)
    assert measure_step(row, row.copy()).kl == measure_step(row, row.copy()).largest == 0.0
    assert measure_step(row, log(0.5, 0.25, 0.25)).kl == inf
    assert measure_step(log(0.5, nan), log(0.5, 0.5)).largest == inf


def test_what_cannot_be_compared_says_why() -> None:
    rows = [log(0.5, 0.5)]
    left = Stream("L", "hash", (0,), rows)
    for right, reason in (
        (Stream("R", "hash", unavailable="no kernel"), "R: no kernel"),
        (Stream("R", "hash", invalid="fell back"), "R: fell back"),
        (Stream("R", "hash", (1,), rows), "the two were not fed the same tokens"),
    ):
        found = compare_forced("greedy", "p", ("L", "R"), "L", left, right)
        assert (found.reason, found.steps, found.max_abs_logprob_diff) == (reason, 0, None)
    empty = Stream("L", "hash")
    assert compare_forced("greedy", "p", ("L", "R"), "L", empty, empty).reason == "there is no step to compare"
