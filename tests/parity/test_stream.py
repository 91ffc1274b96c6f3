"""What the comparison reads: streams, the difference of two steps, and sameness of bits."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.parity.stream import Stream, is_bitwise, step_difference
from tests.parity.reference import Row, apart

VALUES = st.sampled_from([0.0, -0.0, -0.25, -0.5, -1.0, -7.5, -inf, nan]) | st.floats(-30, 0, width=32)
PAIRS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6)
QUICK = settings(max_examples=100)


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


@QUICK
@given(PAIRS)
def test_the_difference_of_two_steps_is_the_largest_over_the_vocabulary(pairs: list[tuple[float, float]]) -> None:
    left, right = row(*(a for a, _ in pairs)), row(*(b for _, b in pairs))
    before = left.tobytes(), right.tobytes()

    assert step_difference(left, right) == max(apart(a, b) for a, b in pairs)
    assert step_difference(right, left) == step_difference(left, right)
    assert (left.tobytes(), right.tobytes()) == before, "the rows are left as they were"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (row(-0.5, -1.0), row(-0.5, -1.0), 0.0),
        (row(-0.5, -1.0), row(-0.75, -1.125), 0.25),
        (row(-0.5, -inf), row(-0.5, -inf), 0.0),
        (row(-0.5, -inf), row(-0.5, -90.0), inf),
        (row(-0.5, nan), row(-0.5, -1.0), inf),
        (row(-0.5, nan), row(-0.5, nan), inf),
        (row(nan, -inf), row(-inf, nan), inf),
        (row(0.0), row(-0.0), 0.0),
        (row(-0.5, -1.0), row(-0.5, -1.0, -2.0), inf),
    ],
)
def test_differences_by_hand(left: Row, right: Row, expected: float) -> None:
    assert step_difference(left, right) == expected


def test_a_small_difference_of_large_values_is_not_rounded() -> None:
    left = row(-1e4)
    right = np.nextafter(left, row(0.0))

    assert step_difference(left, right) == float(right[0]) - float(left[0]) > 0


@QUICK
@given(PAIRS)
def test_bitwise_is_the_same_bits(pairs: list[tuple[float, float]]) -> None:
    left, right = row(*(a for a, _ in pairs)), row(*(b for _, b in pairs))
    same = bool(np.array_equal(left.view(np.uint32), right.view(np.uint32)))

    assert is_bitwise(left, left.copy())
    assert is_bitwise(left, right) is same
    assert is_bitwise(right, left) is same


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (row(0.0, -1.0), row(-0.0, -1.0)),
        (row(-1.0), np.nextafter(row(-1.0), row(0.0))),
        (row(-1.0), row(-1.0, -1.0)),
        (row(0.0), row(0.0).view(np.int32)),
    ],
)
def test_not_bitwise(left: Row, right: Row) -> None:
    assert not is_bitwise(left, right)


def test_a_row_that_is_a_view_is_bitwise_equal_to_its_copy() -> None:
    wide = np.arange(8, dtype=np.float32)

    assert is_bitwise(wide[::2], wide[::2].copy())


@pytest.mark.parametrize(("ids", "rows"), [((1,), []), ((), [row(0.0)]), ((1, 2), [row(0.0)])])
def test_a_stream_needs_a_row_for_every_id(ids: tuple[int, ...], rows: list[Row]) -> None:
    with pytest.raises(ValueError, match="dense"):
        Stream("dense", "hash", ids, rows)


def test_a_stream_is_frozen() -> None:
    stream = Stream("dense", "hash", unavailable="cannot page")

    assert stream.ids == ()
    with pytest.raises(FrozenInstanceError):
        stream.ids = (1,)  # type: ignore[misc]  # frozen: the type checker refuses it too
