"""The gate of ``--expect-identical``: every failing verdict fires, and nothing else does."""

from __future__ import annotations

from itertools import combinations
from math import nan
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.parity.compare import compare
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.stream import Stream
from mlxcel_engine.records.parity import PairEvidence, ParityRow
from tests.parity.reference import greedy, rows_of, stream_of

if TYPE_CHECKING:
    from mlxcel_engine.records.parity import LogitsClass, VerdictName

EXACT = ("cli", "mlx-server", "engine", "dense", "paged")
LOOSE = ("cache-miss", "cache-hit", "batch-4", "mlx-batch-4")
LOOSE_PAIRS = [
    *(("cli", path) for path in LOOSE),
    *(("dense", "cache-miss"), ("cache-miss", "cache-hit"), ("batch-4", "dense"), ("mlx-batch-4", "mlx-server")),
]


def row(
    verdict: VerdictName = "identical",
    logits: LogitsClass | None = "bitwise",
    left: str = "dense",
    right: str = "batch-4",
    case: str = "greedy",
    prompt: str = "short",
) -> ParityRow:
    return ParityRow(
        case=case,
        prompt=prompt,
        left=left,
        right=right,
        verdict=verdict,
        reason="why",
        index=None,
        left_token=None,
        right_token=None,
        left_text=None,
        right_text=None,
        logits=logits,
        max_abs_logprob_diff=None,
        evidence=PairEvidence(left=None, right=None),
    )


N_A = row("n/a", None, "cli", "paged")


def row_of(left: Stream, right: Stream) -> ParityRow:
    """The row of two streams, compared for real, of a pair that need not be bitwise."""
    outcome = compare(left, right, 0.5)
    return row(outcome.verdict, outcome.logits)


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("verdict", ["diverged", "drift", "invalid"])
@pytest.mark.parametrize("logits", ["bitwise", "close", "differ", None])
@pytest.mark.parametrize(("left", "right"), [("cli", "dense"), ("dense", "batch-4")])
def test_a_failing_verdict_fires(
    allow: bool, verdict: VerdictName, logits: LogitsClass | None, left: str, right: str
) -> None:
    result = judge([row(), row(verdict, logits, left, right), N_A], allow_near_tie=allow)

    assert result.exit_code == 1
    assert len(result.failures) == 1


@pytest.mark.parametrize("verdict", ["diverged", "drift", "invalid", "near-tie"])
def test_a_failing_verdict_fires_when_it_is_the_only_row(verdict: VerdictName) -> None:
    assert judge([row(verdict, "close")]).exit_code == 1


def test_a_near_tie_passes_only_where_it_is_allowed() -> None:
    rows = [row(), row("near-tie", "close")]

    assert judge(rows).exit_code == 1
    assert judge(rows, allow_near_tie=True).exit_code == 0
    assert judge(rows, allow_near_tie=True).failures == ()


@pytest.mark.parametrize(("left", "right"), list(combinations(EXACT, 2)))
def test_a_pair_of_exact_paths_must_be_bitwise(left: str, right: str) -> None:
    for one, other in ((left, right), (right, left)):
        assert judge([row("identical", "bitwise", one, other)]).exit_code == 0
        for allow in (False, True):
            assert judge([row("identical", "close", one, other)], allow_near_tie=allow).exit_code == 1


@pytest.mark.parametrize(("left", "right"), LOOSE_PAIRS)
def test_any_other_pair_may_be_close(left: str, right: str) -> None:
    for one, other in ((left, right), (right, left)):
        assert judge([row("identical", "close", one, other)]).exit_code == 0


@pytest.mark.parametrize("rows", [[], [N_A], [N_A, row("n/a", None, "dense", "batch-4")]])
def test_nothing_compared_is_no_pass(rows: list[ParityRow]) -> None:
    for allow in (False, True):
        result = judge(rows, allow_near_tie=allow)

        assert (result.exit_code, result.compared, result.failures) == (3, 0, ())


@pytest.mark.parametrize(("left", "right"), [("cli", "paged"), ("dense", "paged"), ("dense", "cache-miss")])
def test_a_path_that_cannot_run_does_not_fail_the_gate(left: str, right: str) -> None:
    result = judge([row("n/a", None, left, right), row()])

    assert (result.exit_code, result.compared, result.failures) == (0, 1, ())


def test_a_failure_names_its_row() -> None:
    rows = [
        row(),
        row("diverged", "differ", "cli", "dense", "seeded", "long"),
        row("identical", "close", "cli", "paged"),
    ]
    first, second = judge(rows).failures

    assert all(name in first for name in ("seeded", "long", "cli", "dense", "diverged"))
    assert all(name in second for name in ("greedy", "short", "cli", "paged", "bitwise"))


def fails(one: ParityRow, allow: bool) -> bool:
    """The rule of the specification."""
    by_verdict = one.verdict in {"diverged", "drift", "invalid"} | (set() if allow else {"near-tie"})
    exact = one.left in EXACT and one.right in EXACT
    return by_verdict or (one.verdict in ("identical", "near-tie") and exact and one.logits != "bitwise")


ROWS = st.builds(
    row,
    st.sampled_from(["identical", "identical", "drift", "near-tie", "diverged", "n/a", "n/a", "invalid"]),
    st.sampled_from(["bitwise", "close"]),
    st.sampled_from(EXACT[:3]),
    st.sampled_from([*EXACT[3:], *LOOSE]),
    st.sampled_from(["greedy", "seeded"]),
)


@settings(max_examples=150)
@given(st.lists(ROWS, max_size=5), st.booleans())
def test_the_gate_is_the_rule_over_the_rows(rows: list[ParityRow], allow: bool) -> None:
    result = judge(rows, allow_near_tie=allow)
    failing = [one for one in rows if fails(one, allow)]
    none_compared = all(one.verdict in ("n/a", "invalid") for one in rows)

    assert result.exit_code == (1 if failing else 3 if none_compared else 0)
    assert len(result.failures) == len(failing)
    assert (result.compared == 0) is none_compared


def test_streams_that_are_no_parity_fire_through_the_comparison() -> None:
    """The negative controls from end to end; not even an allowed near-tie lets one pass."""
    good = greedy("L", rows_of((-1.0, -4.0), (-1.0, -4.0)))
    bad = [
        greedy("R", rows_of((-1.0, -4.0), (-4.0, -1.0))),
        greedy("R", rows_of((-1.0, -4.0), (-1.0, -5.0))),
        greedy("R", rows_of((-1.0, -4.0))),
        greedy("R", rows_of((-1.0, -4.0), (-1.0, -4.0)), "stop"),
        stream_of("R", rows_of((-1.0, -4.0), (-1.0, nan)), (0, 0)),
        stream_of("R", rows_of((-1.0, nan), (-4.0, -1.0)), (0, 1)),
        Stream("R", "hash", invalid="paged fell back to dense"),
        Stream("R", "another hash", good.ids, good.logprobs, good.text, good.finish_reason),
        Stream("R", "hash"),
    ]

    assert judge([row_of(good, good)]).exit_code == 0
    for other in bad:
        assert judge([row_of(good, good), row_of(good, other)], allow_near_tie=True).exit_code == 1
    empty = Stream("L", "hash")
    assert judge([row_of(empty, empty)], allow_near_tie=True).exit_code == 1
    assert judge([row_of(good, Stream("R", "hash", unavailable="cannot page"))]).exit_code == 3


def test_a_near_tie_of_two_streams_passes_only_where_it_is_allowed() -> None:
    rows = [row_of(greedy("L", rows_of((-1.0, -1.25))), greedy("R", rows_of((-1.25, -1.0))))]

    assert rows[0].verdict == "near-tie"
    assert [judge(rows, allow_near_tie=allow).exit_code for allow in (False, True)] == [1, 0]
