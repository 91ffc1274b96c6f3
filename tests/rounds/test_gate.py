"""When the gate passes, fires or cannot tell, on records made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.rounds.gate import GateResult, judge
from mlxcel_engine.rounds.summary import summarise
from tests.rounds.fakes import config, header, run
from tests.rounds.made import busy_in, line, row, runs, summary, with_lines

if TYPE_CHECKING:
    from mlxcel_engine.records.rounds import Run


def test_other_tokens_are_flagged_and_fail_the_gate_only_if_asked() -> None:
    record = summary(runs([110.0] * 5, token_hash="other"))
    assert any("b against a, cli at 256 tokens: they do not generate the same tokens" in note for note in record.notes)
    assert judge(record).exit_code == 0
    result = judge(record, expect_same_tokens=True)
    assert result.exit_code == 1
    assert result.failures == ("b, cli at 256 tokens: it does not generate the tokens of a",)
    assert judge(summary(runs([110.0] * 5)), expect_same_tokens=True).exit_code == 0


def test_the_gate_fires_beyond_the_threshold_and_not_before() -> None:
    flat = [100.0] * 5
    for b, threshold, code in ((97.9, 2.0, 1), (98.1, 2.0, 0), (98.0, 2.0, 0), (99.4, None, 1), (99.6, None, 0)):
        record = summary(runs([b] * 5, flat, flat), threshold)
        assert judge(record).exit_code == code
    (failure,) = judge(summary(runs([90.0] * 5, flat, flat), 2.0)).failures
    assert failure.startswith(
        "b, cli at 256 tokens: -10.0 % decode speed against a (median of the 5 rounds that count; all: -10.0 to -10.0)"
    )


def test_the_gate_judges_the_quiet_rounds_alone() -> None:
    flat = [100.0] * 5
    hidden = summary(busy_in(runs([95.0, 95.0, 150.0, 150.0, 150.0], flat, flat), 2, 3, 4))
    assert row(hidden).median_pct == pytest.approx(50.0)
    assert row(hidden).counted_median_pct == pytest.approx(-5.0)
    assert judge(hidden).exit_code == 1
    feigned = summary(busy_in(runs([100.0, 100.0, 50.0, 50.0, 50.0], flat, flat), 2, 3, 4))
    assert judge(feigned).exit_code == 0


def test_a_busy_null_pair_gives_the_gate_no_slack() -> None:
    flat = [100.0] * 5
    made = runs([95.0] * 5, flat, [100.0, 100.0, 100.0, 100.0, 130.0])
    assert judge(summary(made)).exit_code == 0
    quiet = summary(busy_in(made, 4))
    assert quiet.thresholds[0].pct == 0.5
    assert judge(quiet).exit_code == 1


@pytest.mark.parametrize("threshold", [None, 2.0])
def test_with_every_round_busy_nothing_is_judged(threshold: float | None) -> None:
    record = summary(busy_in(runs([95.0] * 5), 0, 1, 2, 3, 4), threshold)
    assert (row(record).n, row(record).counted, row(record).counted_median_pct) == (5, 0, None)
    result = judge(record)
    assert (result.exit_code, result.failures, result.compared) == (3, (), 0)
    assert result.unmeasured[0].startswith("b, cli at 256 tokens: of 5 pairs none counts")


def test_a_cell_that_one_side_lacks_fails_the_gate() -> None:
    made = runs([100.0] * 5)
    assert judge(summary(made)).exit_code == 0
    more = judge(summary(with_lines(made, "b", line("server"))))
    assert (more.exit_code, more.compared) == (3, 1)
    assert more.unmeasured == ("b: server at 256 tokens, batch 1: a has no such figure, not compared",)
    both = with_lines(made, "a", line("server"))
    assert judge(summary(both)).exit_code == 0  # b was never asked for it
    broken = judge(summary(with_lines(both, "b", line("server", reason="no pages here"))))
    assert (broken.exit_code, broken.compared) == (3, 1)
    assert broken.unmeasured == ("b: server at 256 tokens: no figure in 5 of 5 runs (no pages here)",)


def test_a_context_that_one_of_two_paths_could_not_do_fails_the_gate() -> None:
    longer = {**line("cli"), "rows": [{**line("cli")["rows"][0], "ctx": 512}]}
    missing = {
        **line("engine", reason="out of memory"),
        "unmeasured": [{"path": "engine", "ctx": 512, "reason": "oom"}],
    }
    made = with_lines(with_lines(runs([100.0] * 5, path="engine"), "a", longer), "b", missing)
    result = judge(summarise(header(config("a", "b", ctx=(256, 512))), made, None))
    assert (result.exit_code, result.compared) == (3, 1)
    assert result.unmeasured == ("b: engine at 512 tokens: no figure in 5 of 5 runs (oom)",)


def test_a_path_that_broke_is_never_paired_with_another() -> None:
    asked = with_lines(runs([100.0] * 5), "b", line("engine", reason="out of memory"))
    made = [
        one.model_copy(update={"lines": [line("server")], "status": "timeout"}) if one.arm == "a" else one
        for one in asked
    ]
    record = summary(made)
    assert {row.arm for row in record.rows} == {"a-null"}
    assert judge(record).unmeasured[0] == "b: no pair to compare"


def test_the_gate_never_passes_on_nothing() -> None:
    nothing = summary([])
    assert judge(nothing).exit_code == 3
    assert judge(nothing).unmeasured[:2] == (
        "0 of 15 runs are there; --resume makes the others",
        "b: no pair to compare",
    )
    without_null = summary([one for one in runs([110.0] * 5) if not one.null])
    assert judge(without_null).exit_code == 3
    assert judge(summary([one for one in runs([110.0] * 5) if not one.null], 2.0)).exit_code == 3
    one_arm_failed = [run(0, "a", 100.0), run(0, "a", 100.0, null=True), run(0, "b", None, status="crashed")]
    assert judge(summary(one_arm_failed, rounds=1)).exit_code == 3


def test_an_unfinished_record_does_not_pass() -> None:
    made = runs([100.0] * 5)
    assert judge(summary(made)).exit_code == 0
    for left in range(len(made)):
        result = judge(summary(made[:left]))
        assert (result.exit_code, result.unmeasured[0]) == (
            3,
            f"{left} of 15 runs are there; --resume makes the others",
        )
    holed = judge(summary([one for one in made if (one.round, one.arm) != (2, "b")]))
    assert (holed.exit_code, holed.compared) == (3, 1)
    assert holed.unmeasured == ("14 of 15 runs are there; --resume makes the others",)


def test_a_regression_in_an_unfinished_record_is_one_all_the_same() -> None:
    flat = [100.0] * 5
    assert judge(summary(runs([90.0] * 5, flat, flat)[:9])).exit_code == 1


def test_a_path_that_no_arm_could_run_fails_the_gate() -> None:
    made = runs([100.0] * 5)
    for arm in ("a", "b"):
        made = with_lines(made, arm, line("mlx-server", reason="a cache without merge"))
    result = judge(summary(made))
    lacking = "mlx-server at 256 tokens: no figure in 5 of 5 runs (a cache without merge)"
    assert (result.exit_code, result.compared) == (3, 1)
    assert result.unmeasured == tuple(f"{name}: {lacking}" for name in ("a", "a-null", "b"))


def test_a_path_that_was_measured_in_some_rounds_only_fails_the_gate() -> None:
    both = with_lines(with_lines(runs([100.0] * 5), "a", line("server")), "b", line("server"))
    assert judge(summary(both)).exit_code == 0
    once = line("server", reason="out of memory")
    made = [
        one.model_copy(update={"lines": [one.lines[0], once]}) if (one.arm, one.round) == ("b", 2) else one
        for one in both
    ]
    result = judge(summary(made))
    assert (result.exit_code, result.compared) == (3, 2)
    assert result.unmeasured == ("b: server at 256 tokens: no figure in 1 of 5 runs (out of memory)",)


def with_context(ctx: int, *arms: str) -> list[Run]:
    """Five rounds at 256 tokens, of ``arms`` (and their null runs) at ``ctx``, too."""
    longer = {**line("cli"), "rows": [{**line("cli")["rows"][0], "ctx": ctx}]}
    made = runs([100.0] * 5)
    for arm in arms:
        made = with_lines(made, arm, longer)
    return made


@pytest.mark.parametrize(
    ("arms", "lacking"),
    [
        (("a",), ["b: cli at 512 tokens: no figure in 5 of 5 runs"]),
        ((), [f"{name}: cli at 512 tokens: no figure in 5 of 5 runs" for name in ("a", "a-null", "b")]),
        (("a", "b"), []),
    ],
)
def test_a_context_that_was_asked_for_and_not_measured_fails_the_gate(
    arms: tuple[str, ...], lacking: list[str]
) -> None:
    record = summarise(header(config("a", "b", ctx=(256, 512))), with_context(512, *arms), None)
    result = judge(record)
    assert list(result.unmeasured) == lacking == record.notes
    assert result.exit_code == (3 if lacking else 0)


def test_an_arm_with_contexts_of_its_own_is_asked_for_these() -> None:
    asked = config("a", "b", ctx=(256, 512)).model_copy(update={"extra": ["--ctx", "128", "--ctx=256"]})
    result = judge(summarise(header(asked), with_context(128, "a", "b"), None))
    assert (result.exit_code, result.unmeasured) == (0, ())


def test_nothing_compared_is_never_a_pass() -> None:
    assert GateResult((), (), 0).exit_code == 3
    assert GateResult((), (), 1).exit_code == 0
    alone = judge(summarise(header(config("a")), [one for one in runs([100.0] * 5) if one.arm == "a"], 2.0))
    assert (alone.exit_code, alone.compared) == (3, 0)
    assert alone.unmeasured == ("there is one arm, and nothing to compare it with",)


def test_why_something_could_not_be_compared_is_said_as_it_is() -> None:
    (other_counts,) = judge(summary(runs([100.0] * 5, tokens=7))).unmeasured
    assert other_counts == (
        "b, cli at 256 tokens: in 5 of its pairs with a the token counts differ, they are not compared"
    )
    once = [run(2, "b", 100.0, tokens=7) if (one.arm, one.round) == ("b", 2) else one for one in runs([100.0] * 5)]
    result = judge(summary(once))
    assert (result.exit_code, result.compared) == (3, 1)
    assert result.unmeasured == (
        "b, cli at 256 tokens: in 1 of its pairs with a the token counts differ, they are not compared",
    )
    (one_token,) = judge(summary(runs([None] * 5))).unmeasured
    assert one_token == "b, cli at 256 tokens: in none of its pairs with a do both have a decode speed"
    null_of_other_count = [
        run(one.round, "a", 100.0, null=True, tokens=7) if one.null else one for one in runs([100.0] * 5)
    ]
    assert judge(summary(null_of_other_count, 2.0)).unmeasured == (
        "b, cli at 256 tokens: of 5 pairs none counts, which takes a quiet host and a's null run with as many tokens",
    )
