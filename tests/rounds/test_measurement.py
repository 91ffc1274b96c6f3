"""What an arm prints: what is no measurement is garbage, and nothing that it prints stops the other arms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxcel_engine.rounds.measurement import (
    MOST_CELLS,
    MOST_LINES,
    GarbageError,
    asked_paths,
    measurements,
    parse_lines,
    parse_what_is_there,
)

ROW = {
    "path": "cli",
    "ctx": 256,
    "batch": 1,
    "tokens": 8,
    "token_hash": "abc",
    "decode_tok_s": 18.5,
    "ttft_ms": 900.0,
}


def line(row: dict[str, Any] | None = None, **more: Any) -> str:
    return json.dumps({"kind": "bench", "environment": {}, "rows": [ROW | (row or {})], **more})


def test_a_record_is_read_and_what_a_newer_version_adds_is_kept() -> None:
    (found,) = parse_lines(line({"new": 1}, newer=[2]) + "\n")
    assert found["newer"] == [2]
    assert measurements([found])[0].decode_tok_s == 18.5
    assert asked_paths([found]) == {"cli"}


@pytest.mark.parametrize(
    "printed",
    [
        "[" * 200_000,
        line(label="\ud800"),
        line({"decode_tok_s": float("nan")}),
        line({"decode_tok_s": float("inf")}),
        line({"decode_tok_s": -5.0}),
        line({"ttft_ms": float("inf")}),
        line(config=None),
        line(config={"paths": None}),
        "y\n" * 10,
    ],
    ids=["deep", "half a surrogate", "nan", "inf", "negative", "ttft", "no config", "no paths", "other words"],
)
def test_what_is_no_measurement_is_garbage(printed: str) -> None:
    with pytest.raises(GarbageError, match="line 1 of its output is no bench record"):
        parse_lines(printed)
    assert parse_what_is_there(printed + "\n" + line()) == [json.loads(line())]


def test_a_line_separator_inside_a_text_ends_no_line() -> None:
    text = json.dumps({"kind": "bench", "environment": {}, "rows": [ROW], "label": "a\u2028b"}, ensure_ascii=False)
    assert parse_lines(text)[0]["label"] == "a\u2028b"


def test_of_a_run_that_failed_a_bounded_number_of_lines_is_read() -> None:
    noise = '{"kind": "bench"}\n' * 2 * MOST_LINES
    assert parse_what_is_there(line() + "\n" + noise) == [json.loads(line())]
    assert parse_what_is_there(noise + line()) == []
    assert parse_what_is_there("{\n" * 2 * MOST_LINES + line()) == [json.loads(line())]


def test_a_run_that_measures_without_end_is_garbage() -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{**ROW, "ctx": 1 + index} for index in range(count)]

    def printed(count: int) -> str:
        return json.dumps({"kind": "bench", "environment": {}, "rows": rows(count)})

    assert len(measurements(parse_lines(printed(MOST_CELLS)))) == MOST_CELLS
    with pytest.raises(GarbageError, match="line 1 of its output is no bench record"):
        parse_lines(printed(MOST_CELLS + 1))
    two = printed(MOST_CELLS) + "\n" + line({"path": "engine"})
    with pytest.raises(GarbageError, match=f"it printed {MOST_CELLS + 1} measurements"):
        parse_lines(two)
    assert parse_what_is_there(two) == [json.loads(printed(MOST_CELLS))]
    assert parse_what_is_there(printed(MOST_CELLS + 1) + "\n" + line()) == [json.loads(line())]
