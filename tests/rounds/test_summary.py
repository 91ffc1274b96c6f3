"""From runs made by hand to the summary, and its notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.rounds.gate import judge
from tests.rounds.fakes import run
from tests.rounds.made import A, row, runs, summary

if TYPE_CHECKING:
    from collections.abc import Callable


def test_deltas_are_paired_by_round_and_the_levels_are_each_arms_own() -> None:
    record = summary(runs([110.0, 111.1, 108.9, 110.0, 110.55]))
    b = row(record)
    assert b.deltas_pct == pytest.approx([10.0] * 5)
    assert (b.n, b.counted, b.ahead, b.behind, b.verdict) == (5, 5, 5, 0, "faster")
    assert (b.reference, b.null, b.path, b.ctx, b.same_tokens) == ("a", False, "cli", 256, True)
    null = row(record, "a-null")
    assert null.deltas_pct == pytest.approx([0.5, -0.9901, 0.50505, -1.0, 0.49751], abs=1e-4)
    assert (null.reference, null.null, null.verdict) == ("a", True, "no difference")
    level = next(level for level in record.levels if level.arm == "b" and level.metric == "decode_tok_s")
    assert (level.median, level.low, level.high, level.n) == (110.0, 108.9, 111.1, 5)


def test_the_automatic_threshold_is_the_widest_null_delta_of_all_rounds_rounded_up() -> None:
    """By hand: a against a-null is at most 1.6 % apart in decode speed, and 3.1 % in TTFT."""
    made = runs([100.0] * 5, a=[100.0] * 5, null=[100.3, 98.4, 101.1, 100.0, 99.9])
    made[2] = run(0, "a", 100.3, null=True, ttft=51.55)
    thresholds = {one.metric: (one.pct, one.automatic) for one in summary(made).thresholds}
    assert thresholds == {"decode_tok_s": (2.0, True), "ttft_ms": (3.5, True)}
    assert summary(made, 1.25).thresholds[0].pct == 1.25


def test_less_time_to_the_first_token_is_faster_and_shown_as_measured() -> None:
    made = runs(A, ttft=40.0)
    ttft = row(summary(made), metric="ttft_ms")
    assert ttft.deltas_pct == pytest.approx([-20.0] * 5)
    assert (ttft.verdict, ttft.ahead) == ("faster", 5)
    assert row(summary(runs(A, ttft=60.0)), metric="ttft_ms").verdict == "slower"


def test_pairs_with_other_token_counts_are_shown_and_not_compared() -> None:
    made = runs([110.0] * 5)
    made[4] = run(1, "b", 500.0, tokens=7, token_hash="other")
    record = summary(made)
    b = row(record)
    assert b.deltas_pct[1] is None
    assert (b.n, b.counted, b.unequal_tokens, b.same_tokens) == (4, 4, 1, False)
    assert b.verdict == "unresolved"
    assert any("1 pairs have other token counts" in note for note in record.notes)
    assert max(level.high for level in record.levels if level.metric == "decode_tok_s") == 500.0


def test_busy_rounds_are_shown_but_no_claim_rests_on_them() -> None:
    made = [
        one.model_copy(update={"busy": ["other programs use 1.00 cores"] if one.round >= 3 else []})
        for one in runs([110.0] * 5)
    ]
    record = summary(made)
    b = row(record)
    assert (b.n, b.counted, b.verdict) == (5, 3, "unresolved")
    assert b.reason == "rounds that count: 3, a claim needs 5"
    assert b.rounds_needed == 5
    assert any("busy in round 4, 5 (a: other programs use 1.00 cores)" in note for note in record.notes)


def test_a_drift_over_the_rounds_is_shown_and_cancels_in_the_deltas() -> None:
    slow = [1.0, 1.0, 0.9, 0.9, 0.9]
    record = summary(runs([100.2 * s for s in slow], [100.0 * s for s in slow], [99.9 * s for s in slow]))
    assert record.drift[0].levels_pct == pytest.approx([111.1, 111.1, 100.0, 100.0, 100.0], abs=0.1)
    assert row(record).deltas_pct == pytest.approx([0.2] * 5)


def test_a_failed_run_is_named_and_its_round_has_no_pair() -> None:
    made = runs([110.0] * 5)
    made[4] = run(1, "b", None, status="crashed")
    made[8] = run(2, "a", None, null=True, status="timeout")
    record = summary(made)
    b = row(record)
    assert b.deltas_pct[1] is None
    assert (b.n, b.counted) == (4, 3)
    assert record.notes == ["b, round 2: crashed: why", "a-null, round 3: timeout: why"]


def test_an_unfinished_file_says_so() -> None:
    record = summary(runs([110.0] * 5)[:7])
    assert row(record).n == 2
    assert "7 of 15 runs are there" in record.notes[0]


def test_arms_of_one_path_each_are_compared_whatever_the_path_else_path_by_path() -> None:
    made = runs([110.0] * 5, path="engine")
    assert (row(summary(made)).path, row(summary(made)).reference_path) == ("engine", "cli")
    other = runs([120.0] * 5, path="server")
    both = [
        one if one.arm == "a" else one.model_copy(update={"lines": [*one.lines, *more.lines]})
        for one, more in zip(runs([110.0] * 5), other, strict=True)
    ]
    record = summary(both)
    assert row(record).path == "cli"
    assert "b: server at 256 tokens, batch 1: a has no such figure, not compared" in record.notes


@pytest.mark.parametrize("more", [{"ctx": 512}, {"batch": 4}])
def test_another_context_or_batch_is_not_compared(more: dict[str, Any]) -> None:
    record = summary(runs([110.0] * 5, **more))
    assert {row.arm for row in record.rows} == {"a-null"}
    assert "a has no such figure" in record.notes[0]
    assert judge(record).exit_code == 3


def test_a_single_token_has_no_decode_speed_and_is_not_compared() -> None:
    b = row(summary(runs([None] * 5)))
    assert (b.n, b.median_pct, b.ci_low_pct, b.verdict) == (0, None, None, "unresolved")


def test_versions_that_differ_are_named() -> None:
    record = summary(runs([110.0] * 5, mlx="0.33.0"))
    assert record.notes == ["mlx differs: a 0.32.4, b 0.33.0"]
    assert {arm: env["mlx"] for arm, env in record.environment.items()} == {"a": "0.32.4", "b": "0.33.0"}


def test_a_null_arm_that_differs_from_itself_is_a_warning() -> None:
    record = summary(runs([100.0] * 5, [100.0] * 5, [103.0, 103.5, 104.0, 103.2, 103.1]))
    assert row(record, "a-null").verdict == "no difference"  # its own width sets the threshold
    assert any("a-null and a are the same, but their decode speed at 256 tokens differs" in n for n in record.notes)


def test_what_a_failed_run_had_measured_counts() -> None:
    made = [
        one.model_copy(update={"status": "crashed", "reason": "path server failed"}) if one.arm == "b" else one
        for one in runs([110.0] * 5)
    ]
    record = summary(made)
    assert (row(record).n, row(record).verdict) == (5, "faster")
    assert "b, round 1: crashed: path server failed" in record.notes


SPEEDS = st.lists(st.tuples(*[st.floats(50, 150)] * 3), min_size=5, max_size=5)


@settings(max_examples=60)
@given(SPEEDS, st.sampled_from([0.25, 3.0]))
def test_the_unit_of_speed_does_not_matter(speeds: list[tuple[float, ...]], factor: float) -> None:
    a, b, null = zip(*speeds, strict=True)
    once = row(summary(runs(b, a, null)))
    scaled: Callable[[tuple[float, ...]], list[float]] = lambda values: [factor * value for value in values]  # noqa: E731
    again = row(summary(runs(scaled(b), scaled(a), scaled(null))))
    assert again.deltas_pct == pytest.approx(once.deltas_pct)
    assert (again.verdict, again.ahead, again.behind) == (once.verdict, once.ahead, once.behind)
