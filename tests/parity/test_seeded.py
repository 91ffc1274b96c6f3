"""Seeded cases: verdicts on the scores that a draw is the largest of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel_engine.engine.sampling import GREEDY, ResolvedSampling, RowSampler, SamplingConfig
from mlxcel_engine.engine.sampling.batch import draw
from mlxcel_engine.errors import UsageError
from mlxcel_engine.parity.cases import SAMPLING_CASE, Case, case_configs
from mlxcel_engine.parity.compare import compare, greedy_score
from mlxcel_engine.parity.scores import make_scorer
from mlxcel_engine.parity.stream import Stream
from mlxcel_engine.paths import path_makers
from mlxcel_engine.records.parity import CaseRecord
from tests.faults import FaultyEngine, own_paths, run
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.parity.compare import Comparison

PROMPT = (1, 2, 3)
VOCAB = 40
SAMPLINGS = {
    "seeded": SamplingConfig.seeded(4),
    "cold": SamplingConfig(temperature=0.1, seed=1),
    "hot": SamplingConfig(temperature=3.0, seed=1),
    "xtc": SamplingConfig(temperature=1.0, seed=2, xtc_probability=0.5),
    "dynamic": SamplingConfig(temperature=1.0, seed=2, dynatemp_range=0.5),
    "mirostat 1": SamplingConfig(temperature=1.0, seed=3, mirostat=1),
    "mirostat 2": SamplingConfig(temperature=1.0, seed=3, mirostat=2),
}


def rows(steps: int = 12, seed: int = 0) -> list[Any]:
    logits = np.random.default_rng(seed).normal(0, 2, (steps, VOCAB))
    return [(row - np.logaddexp.reduce(row)).astype(np.float32) for row in logits]


def drawn(sampling: ResolvedSampling, given: list[Any], path: str = "L") -> Stream:
    row, ids = RowSampler(sampling, PROMPT), []
    for logprobs in given:
        tokens, (mu,) = draw([row], mx.array(logprobs)[None])
        row.advance(mu)
        ids.append(int(np.array(tokens)[0]))
    return Stream(path, "hash", tuple(ids), given, " ".join(map(str, ids)), "length")


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_drawn_token_is_the_best_of_its_scores(name: str) -> None:
    sampling = ResolvedSampling(SAMPLINGS[name])
    stream, score = drawn(sampling, rows()), make_scorer(sampling, PROMPT)
    assert [int(score(stream, index).argmax()) for index in range(len(stream.ids))] == list(stream.ids)


def test_a_greedy_case_scores_by_the_logprobs() -> None:
    assert make_scorer(GREEDY, PROMPT) is greedy_score


def parted(temperature: float, gap: float, noise: float) -> Comparison:
    """Two streams that part at step 4, where the drawn token leads the next one by ``gap`` nats at the left."""
    sampling = ResolvedSampling(SamplingConfig(temperature=temperature, seed=9))
    score, given = make_scorer(sampling, PROMPT), rows(5)
    left = drawn(sampling, given)
    scores = score(left, 4)
    second = int(np.argsort(scores)[-2])
    lead = float(scores[left.ids[4]] - scores[second])
    near, far = [row.copy() for row in given], [row.copy() for row in given]
    near[4][second] += lead - gap
    far[4][second] += lead + gap
    far[2][7] += noise
    sides = drawn(sampling, near), drawn(sampling, far, "R")
    return compare(*sides, 1.0, score)


@pytest.mark.parametrize("temperature", [0.1, 0.8, 3.0])
def test_the_gap_of_scores_is_in_nats_of_logprob_whatever_the_temperature(temperature: float) -> None:
    close, far = parted(temperature, 0.01, 0.006), parted(temperature, 0.01, 0.004)
    assert [close.verdict, far.verdict] == ["near-tie", "diverged"]
    assert close.index == far.index == 4
    assert close.left_gap == pytest.approx(0.01, rel=0.01)
    assert close.right_gap == pytest.approx(0.01, rel=0.01)


def test_a_token_at_a_filters_edge_is_judged_by_the_rows_difference() -> None:
    sampling = ResolvedSampling(SamplingConfig(temperature=5.0, top_k=2, seed=0))
    score, base = make_scorer(sampling, PROMPT), rows(1)[0]
    found = {}
    for nudge in (0.001, 0.1):  # of the tie between the second and the third candidate
        for seed in range(200):
            row = np.array([-1.0, -1.5, -1.5, *base[3:] - 20], dtype=np.float32)
            right = row.copy()
            right[1] -= nudge
            sampling = ResolvedSampling(SamplingConfig(temperature=5.0, top_k=2, seed=seed))
            score = make_scorer(sampling, PROMPT)
            one, other = drawn(sampling, [row]), drawn(sampling, [right], "R")
            if one.ids == (1,) and other.ids == (2,):
                found[nudge] = compare(one, other, 0.01, score)
                break
    assert [found[nudge].verdict for nudge in (0.001, 0.1)] == ["near-tie", "diverged"]
    assert found[0.001].left_gap == float("inf")
    assert "a filter dropped one of the two" in found[0.001].reason


def test_a_token_that_was_not_drawn_by_the_rule_is_no_near_tie() -> None:
    sampling = ResolvedSampling(SamplingConfig(temperature=1.0, seed=0))
    left, right = drawn(sampling, rows()), drawn(ResolvedSampling(SamplingConfig(temperature=1.0, seed=1)), rows(), "R")
    outcome = compare(left, right, 1.0, make_scorer(sampling, PROMPT))
    assert (outcome.verdict, outcome.logits) == ("diverged", "bitwise")
    assert outcome.reason == "R took a token that is not its own best"


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_paths_agree_bitwise_in_every_case_and_a_fault_is_found(name: str) -> None:
    cases = [Case(name, ResolvedSampling(SAMPLINGS[name]))]
    record = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.3)], cases=cases)
    server, faulty = record.rows
    assert (server.case, server.verdict, server.logits) == (name, "identical", "bitwise")
    assert faulty.verdict == "diverged"


def test_the_record_says_settings_order_windows_and_seed() -> None:
    configs = case_configs(["greedy", "seeded"], 77, SamplingConfig(temperature=0.5))
    cases = [Case(name, ResolvedSampling(config)) for name, config in configs.items()]
    record = run(tiny_loaded(), [path_makers(4)["cli"]()], cases=cases, n=2)
    greedy, seeded, given = record.config.cases
    assert (greedy.name, greedy.effective.order, greedy.effective.seed) == ("greedy", ["greedy"], None)
    assert (seeded.effective.seed, seeded.effective.repeat_last_n) == (77, 64)
    assert seeded.sampling["dry_sequence_breakers"] == ["\n", ":", '"', "*"]
    assert (given.name, given.effective.seed, given.sampling["temperature"]) == (SAMPLING_CASE, 77, 0.5)


def test_a_banned_token_is_recorded_as_json_has_it_and_read_again() -> None:
    config = SamplingConfig.parse({"logit_bias": {"5": False, "6": 2.0}, "temperature": 1.0, "seed": 3})
    recorded = Case("sampling", ResolvedSampling(config)).record()
    again = CaseRecord.model_validate_json(recorded.model_dump_json())
    assert again == recorded
    assert SamplingConfig.parse(again.sampling) == config


def test_a_given_sampling_keeps_its_own_seed_and_can_be_alone() -> None:
    assert case_configs([], 5, SamplingConfig(temperature=1.0, seed=3))[SAMPLING_CASE].seed == 3
    with pytest.raises(UsageError, match="there is no case to run"):
        case_configs([], 5, None)
    with pytest.raises(UsageError, match="'gready': no such case; give some of greedy, seeded"):
        case_configs(["gready"], 5, None)
