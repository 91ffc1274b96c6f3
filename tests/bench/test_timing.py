"""The arithmetic of the bench on a fake clock: every figure against one worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.bench.summary import limit_pct, summarise
from mlxcel_engine.bench.timing import StreamTimes, StreamToken, time_streams
from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeClock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def loop(clock: FakeClock, *steps: tuple[float, int, int, str | None]) -> Iterator[StreamToken]:
    """Events of (seconds since the one before, stream, token, finish reason)."""
    for seconds, stream, token, finish in steps:
        clock.now += seconds
        yield StreamToken(stream, token, finish)


def stream(*arrivals: float) -> StreamTimes:
    return StreamTimes(list(range(len(arrivals))), list(arrivals), "length")


def test_arrivals_count_from_the_submission_not_from_the_making_of_the_loop() -> None:
    clock = FakeClock()
    events = loop(clock, (2.0, 0, 7, None), (0.5, 0, 8, None), (0.25, 0, 9, "length"))
    clock.now += 100.0
    (times,) = time_streams(events, 1, clock, lambda _: None)
    assert times == StreamTimes([7, 8, 9], [2.0, 2.5, 2.75], "length")


def test_streams_are_kept_apart() -> None:
    clock = FakeClock()
    steps = ((1.0, 1, 5, None), (1.0, 0, 6, "stop"), (1.0, 1, 7, "length"))
    first, second = time_streams(loop(clock, *steps), 2, clock, lambda _: None)
    assert (first.tokens, first.arrivals, first.finish_reason) == ([6], [2.0], "stop")
    assert (second.tokens, second.arrivals, second.finish_reason) == ([5, 7], [1.0, 3.0], "length")


def test_progress_is_told_at_the_first_token_and_then_seldom() -> None:
    clock = FakeClock()
    told: list[int] = []
    steps = [(0.2, 0, 1, None)] * 9 + [(0.2, 0, 1, "length")]
    time_streams(loop(clock, *steps), 1, clock, told.append)
    assert told == [1, 4, 7, 10]


@pytest.mark.parametrize("steps", [(), ((1.0, 0, 5, None),)])
def test_a_loop_that_ends_before_its_stream_is_an_error(steps: tuple[tuple[float, int, int, str | None], ...]) -> None:
    clock = FakeClock()
    with pytest.raises(RunError, match=f"stream 0 ended after {len(steps)} tokens without a finish reason"):
        time_streams(loop(clock, *steps), 1, clock, lambda _: None)


def test_decode_speed_never_contains_the_time_to_the_first_token() -> None:
    figures = summarise([stream(10.0, 10.5, 11.0, 11.5, 12.0)], prompt_tokens=200)
    assert figures.ttft_ms == 10_000.0
    assert figures.decode_tok_s == 2.0
    assert figures.stream_tok_s == (2.0,)
    assert figures.prefill_tok_s == 20.0


def test_percentiles_of_the_gaps_between_tokens() -> None:
    figures = summarise([stream(1.0, 1.010, 1.030, 1.060, 1.100)], prompt_tokens=1)  # gaps of 10, 20, 30, 40 ms
    assert figures.itl_ms_p50 == pytest.approx(25.0)
    assert figures.itl_ms_p95 == pytest.approx(38.5)


def test_one_token_has_a_time_to_first_token_and_nothing_else() -> None:
    figures = summarise([stream(3.0)], prompt_tokens=30)
    assert (figures.ttft_ms, figures.prefill_tok_s) == (3000.0, 10.0)
    assert (figures.decode_tok_s, figures.itl_ms_p50, figures.itl_ms_p95) == (None, None, None)
    assert figures.stream_tok_s == (None,)


def test_zero_tokens_have_no_figure() -> None:
    figures = summarise([StreamTimes([], [], "stop")], prompt_tokens=30)
    assert (figures.ttft_ms, figures.prefill_tok_s, figures.decode_tok_s) == (None, None, None)
    assert figures.stream_tok_s == (None,)


def test_equal_streams_add_up_although_their_tokens_are_read_one_after_the_other() -> None:
    rows = [stream(*(1.0 + 0.001 * row + 0.1 * step for step in range(20))) for row in range(4)]
    figures = summarise(rows, prompt_tokens=4)
    assert figures.decode_tok_s == pytest.approx(40.0)
    assert figures.stream_tok_s == pytest.approx((10.0,) * 4)


def test_the_speed_of_a_batch_is_that_while_all_streams_decode() -> None:
    alone, late = stream(1.0, 2.0, 3.0, 3.5, 4.0), stream(3.0, 3.5, 4.0, 4.1, 4.2)  # the first slows down for no one
    figures = summarise([alone, late], prompt_tokens=2)
    assert figures.decode_tok_s == pytest.approx(2.0 + 2.0)  # from 3.0 to 4.0
    assert figures.ttft_ms == pytest.approx(2000.0)  # the median of 1 and 3 s
    assert figures.prefill_tok_s == pytest.approx(2 / 3.0)
    apart = summarise([stream(1.0, 2.0), stream(3.0, 4.0)], prompt_tokens=2)
    assert apart.decode_tok_s is None
    assert apart.stream_tok_s == (1.0, 1.0)


def test_the_limit_is_bytes_a_token_times_tokens_a_second_over_the_bandwidth() -> None:
    assert limit_pct(538e6, 16.0, 11.9) == pytest.approx(100 * 538e6 * 16.0 / 11.9e9)
    assert limit_pct(None, 16.0, 11.9) is None
    assert limit_pct(538e6, None, 11.9) is None


arrivals = st.lists(st.floats(1e-3, 10.0), min_size=2, max_size=40).map(
    lambda gaps: [sum(gaps[: index + 1]) for index in range(len(gaps))]
)


@given(arrivals, st.floats(0.0, 100.0))
def test_a_later_first_token_changes_nothing_but_itself(times: list[float], wait: float) -> None:
    now, later = summarise([stream(*times)], 10), summarise([stream(*(time + wait for time in times))], 10)
    assert later.decode_tok_s == pytest.approx(now.decode_tok_s, rel=1e-6)
    assert later.itl_ms_p95 == pytest.approx(now.itl_ms_p95, rel=1e-6)
    assert (later.ttft_ms or 0) - (now.ttft_ms or 0) == pytest.approx(1e3 * wait, abs=1e-6)


@given(arrivals)
def test_speed_and_gaps_agree(times: list[float]) -> None:
    figures = summarise([stream(*times)], 10)
    gaps = [after - before for before, after in pairwise(times)]
    assert figures.decode_tok_s == pytest.approx(len(gaps) / sum(gaps), rel=1e-6)
    assert min(gaps) * (1 - 1e-9) <= (figures.itl_ms_p50 or 0) / 1e3 <= (figures.itl_ms_p95 or 0) / 1e3 * (1 + 1e-9)
    assert (figures.itl_ms_p95 or 0) / 1e3 <= max(gaps) * (1 + 1e-9)
