"""The verdicts against the brute-force reference, by hand, and the properties that they must have."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from mlxcel_engine.parity.compare import NOISE_BOUNDS, compare
from mlxcel_engine.parity.stream import Stream
from tests.parity.reference import Pair, apart, greedy, has_nan, pairs, reference, rows_of, stream_of

BOUND = 0.5
QUICK = settings(max_examples=150)
KINDS = {
    *("identical bitwise", "identical close", "drift", "near-tie at 0", "near-tie later", "diverged at 0"),
    *("diverged by noise", "diverged by gap", "prefix", "empty prefix", "finish reason"),
    *("n/a", "invalid path", "invalid prompt", "invalid empty"),
}


def test_every_verdict_is_that_of_the_reference_and_all_are_reached() -> None:
    seen: set[str] = set()

    @settings(max_examples=1200, derandomize=True, database=None)
    @given(pairs())
    def check(pair: Pair) -> None:
        expected, outcome = reference(*pair), compare(*pair)
        event(expected.kind)
        seen.add(expected.kind)
        # The specification is silent on a NaN in the row of the divergence, beside the two candidates.
        assume(not (has_nan(pair) and expected.verdict == "near-tie"))
        assert (outcome.verdict, outcome.index) == (expected.verdict, expected.index)
        assert (outcome.left_token, outcome.right_token) == expected.tokens
        assert outcome.noise == expected.noise
        assert outcome.logits == expected.logits or has_nan(pair)
        assert outcome.reason or outcome.verdict not in ("n/a", "invalid")

    check()
    assert seen == KINDS


SURE, NEAR = (-0.125, -4.0, -8.0), (-1.0, -1.125, -8.0)
LEFT = greedy("L", rows_of(SURE, NEAR))


@pytest.mark.parametrize(
    ("right", "verdict", "index", "noise", "logits"),
    [
        (greedy("R", rows_of(SURE, NEAR)), "identical", None, 0.0, "bitwise"),
        (greedy("R", rows_of(SURE, (-1.0, -1.125, -8.5))), "identical", None, 0.5, "close"),
        (greedy("R", rows_of(SURE, (-1.0, -1.125, -8.625))), "drift", None, 0.625, "differ"),
        (greedy("R", rows_of(SURE, (-1.0, -1.125, -inf))), "drift", None, inf, "differ"),
        (greedy("R", rows_of((-0.125, -4.0625, -8.0), (-1.125, -1.0, -8.0))), "near-tie", 1, 0.0625, "close"),
        (greedy("R", rows_of((-0.125, -4.03125, -8.0), (-1.125, -1.0, -8.0))), "diverged", 1, 0.03125, "close"),
        (greedy("R", rows_of(SURE, (-1.125, -1.0, -8.0))), "diverged", 1, 0.0, "close"),
        (greedy("R", rows_of((-0.125, -4.625, -8.0), (-1.125, -1.0, -8.0))), "diverged", 1, 0.625, "differ"),
        (greedy("R", rows_of((-0.125, -4.0625, -8.0), (-1.125, -0.9375, -8.0))), "diverged", 1, 0.0625, "close"),
        (greedy("R", rows_of((-4.0, -0.125, -8.0), NEAR)), "diverged", 0, None, "differ"),
        (greedy("R", rows_of(SURE)), "diverged", 1, 0.0, "bitwise"),
        (greedy("R", rows_of(SURE, NEAR, NEAR)), "diverged", 2, 0.0, "bitwise"),
        (greedy("R", []), "diverged", 0, None, None),
        (greedy("R", rows_of(SURE, NEAR), "stop"), "diverged", 2, 0.0, "bitwise"),
        (replace(LEFT, path="R", prompt_sha256="other"), "invalid", None, None, None),
        (Stream("R", "hash", invalid="adopted 0 tokens"), "invalid", None, None, None),
        (Stream("R", "hash", unavailable="cannot page"), "n/a", None, None, None),
    ],
)
def test_verdicts_by_hand(
    right: Stream, verdict: str, index: int | None, noise: float | None, logits: str | None
) -> None:
    for outcome in (compare(LEFT, right, BOUND), compare(right, LEFT, BOUND)):
        assert (outcome.verdict, outcome.index, outcome.noise, outcome.logits) == (verdict, index, noise, logits)


def test_the_bounds_are_those_of_the_specification() -> None:
    assert NOISE_BOUNDS == {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.5}


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "near-tie"), (BOUND, "near-tie"), (BOUND + 0.125, "diverged")])
def test_at_the_first_step_the_gap_is_held_against_the_bound(gap: float, verdict: str) -> None:
    left, right = greedy("L", rows_of((-1.0, -1.0 - gap))), greedy("R", rows_of((-1.125, -1.0)))
    outcome = compare(left, right, BOUND)

    assert (outcome.verdict, outcome.index, outcome.noise) == (verdict, 0, None)
    assert (outcome.left_token, outcome.right_token) == (0, 1)


def test_n_a_and_invalid_say_why_and_a_path_that_cannot_run_is_n_a() -> None:
    cannot, other = Stream("paged", "hash", unavailable="ring caches"), Stream("dense", "hash", unavailable="too")
    wrong = Stream("cache-hit", "hash", invalid="adopted 0 tokens")

    assert "ring caches" in compare(LEFT, cannot, BOUND).reason
    assert "adopted 0 tokens" in compare(wrong, LEFT, BOUND).reason
    assert compare(cannot, other, BOUND).verdict == "n/a"


@pytest.mark.parametrize("ends", [("stop", "stop"), ("length", "stop"), (None, None)])
def test_empty_against_empty_is_never_parity(ends: tuple[str | None, str | None]) -> None:
    left, right = (Stream(path, "hash", finish_reason=end) for path, end in zip("LR", ends, strict=True))

    assert compare(left, right, BOUND).verdict == "invalid"
    assert compare(left, left, BOUND).verdict == "invalid"


def test_ids_text_and_finish_reason_are_compared_one_by_one() -> None:
    """The ending EOS is an id on every path and text on none: what counts it elsewise differs."""
    assert compare(LEFT, replace(LEFT, path="R"), BOUND).verdict == "identical"
    for other in (
        replace(LEFT, ids=LEFT.ids[:1], logprobs=LEFT.logprobs[:1]),
        replace(LEFT, text=LEFT.text + "<eos>"),
        replace(LEFT, finish_reason="stop"),
    ):
        assert compare(LEFT, other, BOUND).verdict == compare(other, LEFT, BOUND).verdict == "diverged"


@QUICK
@given(st.one_of(pairs(), pairs(free_ids=True)))
def test_swapping_the_sides_swaps_the_tokens_and_nothing_else(pair: Pair) -> None:
    outcome, swapped = compare(*pair), compare(pair.right, pair.left, pair.bound)

    assert (swapped.verdict, swapped.index, swapped.noise) == (outcome.verdict, outcome.index, outcome.noise)
    assert (swapped.left_token, swapped.right_token) == (outcome.right_token, outcome.left_token)
    assert swapped.logits == outcome.logits


@QUICK
@given(pairs(free_ids=True))
def test_a_stream_equals_itself_bit_by_bit(pair: Pair) -> None:
    assume(pair.left.ids and not has_nan(pair))
    outcome = compare(pair.left, replace(pair.left, path="R"), pair.bound)

    assert (outcome.verdict, outcome.logits, outcome.noise, outcome.index) == ("identical", "bitwise", 0.0, None)


def test_a_near_tie_needs_small_noise_and_a_small_gap_on_both_sides() -> None:
    """Whatever the loops took and why: a gap beyond the limit, up or down, is not rounding."""
    near = 0

    @settings(QUICK, max_examples=400, derandomize=True, database=None)
    @given(pairs(free_ids=True))
    def check(pair: Pair) -> None:
        nonlocal near
        outcome = compare(*pair)
        if outcome.verdict != "near-tie":
            return
        near += 1
        at = outcome.index
        assert at is not None
        one, other = pair.left.ids[at], pair.right.ids[at]
        rows = pair.left.logprobs[at], pair.right.logprobs[at]
        gap = max(apart(float(row[one]), float(row[other])) for row in rows)
        assert gap <= (pair.bound if outcome.noise is None else 2 * outcome.noise)
        assert outcome.noise is None or outcome.noise <= pair.bound

    check()
    assert near > 5


def test_a_token_that_its_own_logprobs_rank_far_below_is_a_bug() -> None:
    rows = rows_of((-9.0, -1.0))
    outcome = compare(stream_of("L", rows, (0,)), greedy("R", rows), BOUND)

    assert (outcome.verdict, outcome.index, outcome.logits) == ("diverged", 0, "bitwise")


@QUICK
@given(pairs(), st.integers(0, 40), st.integers(0, 40))
def test_after_a_bitwise_equal_prefix_a_positive_gap_is_no_near_tie(pair: Pair, left_gap: int, right_gap: int) -> None:
    prefix = list(pair.left.logprobs)
    assume(prefix and not has_nan(pair))
    width = len(prefix[0])
    ends = [np.full(width, -50.0, dtype=np.float32) for _ in range(2)]
    ends[0][:2], ends[1][:2] = (-1.0, -1.0 - left_gap / 64), (-1.0 - (1 + right_gap) / 64, -1.0)
    outcome = compare(greedy("L", [*prefix, ends[0]]), greedy("R", [*prefix, ends[1]]), pair.bound)

    assert (outcome.verdict, outcome.index, outcome.noise) == ("diverged", len(prefix), 0.0)


@QUICK
@given(pairs(), st.integers(0, 12), st.data())
def test_noise_beyond_the_bound_turns_identical_into_drift(pair: Pair, quarters: int, data: st.DataObject) -> None:
    rows = [row.copy() for row in pair.left.logprobs]
    assume(rows and all(np.isfinite(row).all() for row in rows))
    left = greedy("L", list(pair.left.logprobs))
    step, token = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, len(rows[0]) - 1))
    rows[step][token] -= np.float32(quarters * pair.bound / 4)
    outcome = compare(left, stream_of("R", rows, left.ids), pair.bound)

    assert outcome.verdict == ("identical" if quarters <= 4 else "drift")
    assert outcome.noise == quarters * pair.bound / 4


@QUICK
@given(pairs(), st.sampled_from(["left", "right", "both"]), st.data())
def test_a_nan_is_never_parity(pair: Pair, where: str, data: st.DataObject) -> None:
    assume(pair.left.ids)
    step = data.draw(st.integers(0, len(pair.left.ids) - 1))
    token = data.draw(st.integers(0, len(pair.left.logprobs[0]) - 1))
    sides = [[row.copy() for row in pair.left.logprobs] for _ in range(2)]
    for name, side in zip(("left", "right"), sides, strict=True):
        if where in (name, "both"):
            side[step][token] = nan
    left, right = (stream_of(p, side, pair.left.ids) for p, side in zip("LR", sides, strict=True))
    assert compare(left, right, pair.bound).verdict == "drift"

    if step < len(left.ids) - 1:  # and where they part later
        parted = stream_of("R", sides[1], (*left.ids[:-1], 0 if left.ids[-1] else 1))
        assert compare(left, parted, pair.bound).verdict == "diverged"


def test_a_nan_at_a_candidate_is_no_near_tie() -> None:
    for values in ((-1.0, nan), (nan, -1.0), (nan, nan)):
        broken = stream_of("R", rows_of(values), (1,))
        assert compare(greedy("L", rows_of((-1.0, -1.0))), broken, BOUND).verdict == "diverged"


def test_zeros_of_either_sign_are_close_and_not_bitwise() -> None:
    outcome = compare(greedy("L", rows_of((0.0, -inf))), greedy("R", rows_of((-0.0, -inf))), BOUND)

    assert (outcome.verdict, outcome.logits, outcome.noise) == ("identical", "close", 0.0)
