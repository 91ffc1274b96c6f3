"""How the rows of a step are put together, against what each row says alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.engine.kv.groups import Group, Stretch, group_rows, progressions, shared_prefixes


@given(st.lists(st.integers(0, 60), unique=True, max_size=12))
def test_progressions_cover_every_slot_once_and_in_order(slots: list[int]) -> None:
    runs = progressions(slots)
    positions = [position for rows, _ in runs for position in range(len(slots))[rows]]
    assert positions == list(range(len(slots)))
    assert [slot for _, found in runs for slot in range(61)[found]] == slots


def test_rows_at_a_regular_distance_are_one_progression() -> None:
    assert progressions([5, 25, 45, 65]) == [(slice(0, 4), slice(5, 66, 20))]
    assert progressions([65, 45]) == [(slice(0, 1), slice(65, 66, 1)), (slice(1, 2), slice(45, 46, 1))]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3), st.integers(1, 2)), max_size=10))
def test_a_group_reads_for_each_row_what_the_row_holds(drawn: list[tuple[int, int, int]]) -> None:
    own = [(row, [(16 * b + 100 * s, 16 * b + 100 * s + n) for s in range(k)]) for row, (b, n, k) in enumerate(drawn)]
    read = {}
    for group in group_rows(own):
        assert len(group.stretches) == 1 or len(group.rows) == 1
        for i, row in enumerate(group.rows):
            starts = [stretch.start + i * stretch.stride for stretch in group.stretches]
            read[row] = [(a, a + stretch.tokens) for a, stretch in zip(starts, group.stretches, strict=True)]
    assert read == dict(own)


def test_equal_lengths_at_a_regular_distance_are_one_group_and_others_are_not() -> None:
    own = [(0, [(40, 50)]), (1, [(0, 10)]), (2, [(20, 30)]), (3, [(60, 71)]), (4, [(100, 110), (120, 121)])]
    assert group_rows(own) == (
        Group((1, 2, 0), (Stretch(0, 10, 20),)),
        Group((4,), (Stretch(100, 10), Stretch(120, 1))),
        Group((3,), (Stretch(60, 11),)),
    )


tables = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8)


@given(tables, st.integers(1, 4))
def test_clusters_hold_every_row_once_and_share_what_they_say(rows: list[list[int]], least: int) -> None:
    clusters = shared_prefixes(rows, least)
    assert sorted(row for members, _ in clusters for row in members) == list(range(len(rows)))
    for members, blocks in clusters:
        if blocks:
            assert blocks >= least
            assert len(members) > 1
        assert len({tuple(rows[row][:blocks]) for row in members}) == 1
    alone = [row for members, blocks in clusters if not blocks for row in members]
    for one in alone:
        for other in range(len(rows)):
            common = rows[one][:least] == rows[other][:least] and len(rows[one]) >= least
            assert one == other or not common


def test_a_row_that_shares_less_than_the_least_does_not_shorten_the_prefix_of_the_others() -> None:
    rows = [[1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 3, 4, 6], [7]]
    assert shared_prefixes(rows, 3) == [([0, 2], 4), ([1, 3], 0)]
