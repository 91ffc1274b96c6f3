"""A rounds file that was changed by hand, by a fault or by another version: it reads, or one line names the line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.errors import UsageError
from mlxcel_engine.rounds.contents import parse_contents
from mlxcel_engine.rounds.gate import judge
from mlxcel_engine.rounds.measurement import GarbageError, parse_lines
from mlxcel_engine.rounds.schedule import slots_of
from mlxcel_engine.rounds.summary import summarise
from tests.rounds.fakes import config, header, run

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = config("a", "b")
RUNS = [
    run(slot.round, slot.arm, None if slot.label == "b" and slot.round == 1 else 100.0, null=slot.null)
    for slot in slots_of(CONFIG)
]
LINES = [header(CONFIG).model_dump_json(), *(one.model_dump_json() for one in RUNS)]


def read(lines: list[str], ending: str = "\n") -> tuple[int, bool]:
    """How many runs are read, and whether the last line was torn."""
    contents = parse_contents("r.jsonl", ("\n".join(lines) + ending).encode())
    return len(contents.runs), contents.torn


def changed(number: int, change: Callable[[dict[str, Any]], object]) -> list[str]:
    """The file with a change to what line ``number`` says."""
    value = json.loads(LINES[number - 1])
    change(value)
    return [*LINES[: number - 1], json.dumps(value), *LINES[number:]]


def test_the_file_itself_is_whole() -> None:
    assert read(LINES) == (15, False)
    assert judge(summarise(header(CONFIG), RUNS, None)).exit_code == 0
    assert read(LINES[:-1], "\n" + LINES[-1][:50]) == (14, True)
    assert read(LINES, "") == (14, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.update(schema=2), "line 1: schema 2, this version reads schema 1; take the mlxcel-engine"),
        (lambda line: line.update(schema=2, new=[1]), "line 1: schema 2, this version reads schema 1"),
        (lambda line: line.pop("schema"), "is no rounds file"),
        (lambda line: line.update(kind="bench"), "is no rounds file"),
        (lambda line: line.update(order="random"), r"line 1: no header of a rounds file \(order: Input should be"),
        (lambda line: line["config"].pop("arms"), r"line 1: no header of a rounds file \(config.arms: Field required"),
        (lambda line: line["config"].update(arms=[]), "line 1: arms in the header: 0, a comparison needs two"),
        (lambda line: line["config"]["arms"].pop(), "line 1: arms in the header: 1, a comparison needs two"),
        (lambda line: line["config"]["arms"][1].update(name="a"), "line 1: the header has 2 arms named a"),
        (lambda line: line["config"]["arms"][1].update(name="a-null"), "line 1: 'a-null' is no name of an arm"),
        (lambda line: line["config"]["arms"][1].update(name=""), "line 1: '' is no name of an arm"),
        (lambda line: line["config"].update(rounds=0), "line 1: the header asks for 0 rounds"),
        (lambda line: line["config"].update(rounds=10**9), "line 1: the header asks for 1000000000 rounds"),
        (lambda line: line["config"].update(ctx=[]), r"line 1: the header asks for 32 tokens at contexts \[\]"),
        (lambda line: line["config"].update(max_tokens=0), "line 1: the header asks for 0 tokens"),
    ],
)
def test_a_header_that_cannot_be_is_named(change: Callable[[dict[str, Any]], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(changed(1, change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.update(round=5), "round 6, the header asks for 5"),
        (lambda line: line.update(round=-1), "round 0, the header asks for 5"),
        (lambda line: line.update(position=3), "place 4 in its round, which has 3"),
        (lambda line: line.update(arm="c"), "arm 'c', the header has a, b"),
        (lambda line: line.update(arm="b", null=True), "a null run of b, by the header only a has one"),
        (lambda line: line.update(arm="b", null=False), "repeats round 1 of b"),
        (lambda line: line.update(status="odd"), r"no record of a run \(status: Input should be 'ok'"),
        (lambda line: line.update(more=1), r"no record of a run \(more: Extra inputs"),
        (lambda line: line.pop("before"), r"no record of a run \(before: Field required\)"),
        (lambda line: line["lines"][0].pop("rows"), "a run with wrong measurements: measurement 1 is no bench record"),
        (lambda line: line["lines"][0].pop("environment"), "measurement 1 is no bench record"),
        (lambda line: line["lines"][0].update(environment=None), "measurement 1 is no bench record"),
        (lambda line: line["lines"][0].update(config=None), "measurement 1 is no bench record"),
        (lambda line: line["lines"][0].update(unmeasured=[{}]), "measurement 1 is no bench record"),
        (lambda line: line["lines"][0]["rows"][0].update(decode_tok_s=0), "measurement 1 is no bench record"),
        (lambda line: line["lines"][0]["rows"][0].update(ttft_ms=1e300), "measurement 1 is no bench record"),
        (lambda line: line["lines"][0].update(rows=[]), "it printed no measurement"),
        (lambda line: line.update(lines=[]), "it printed no measurement"),
        (lambda line: line["lines"].append(line["lines"][0]), "it measured cli at 256 tokens, batch 1, twice"),
    ],
)
def test_a_run_that_cannot_be_is_named_with_its_line(change: Callable[[dict[str, Any]], object], said: str) -> None:
    with pytest.raises(UsageError, match=rf"^r\.jsonl, line 4: .*{said}"):
        read(changed(4, change))


def test_a_run_that_failed_needs_no_measurement() -> None:
    assert read(changed(4, lambda line: line.update(status="crashed", lines=[]))) == (15, False)
    with pytest.raises(UsageError, match="line 4: a run with wrong measurements"):
        read(changed(4, lambda line: line.update(status="crashed", lines=[{}])))


def test_a_line_that_was_torn_in_the_middle_or_stands_twice_is_named() -> None:
    with pytest.raises(UsageError, match=r"line 4: no record of a run \(Invalid JSON: EOF.*remove the line"):
        read([*LINES[:3], LINES[3][:60], *LINES[4:]])
    with pytest.raises(UsageError, match="line 4: no record of a run"):
        read([*LINES[:3], LINES[3][:60] + LINES[4], *LINES[5:]])
    with pytest.raises(UsageError, match="line 4: no record of a run"):
        read([*LINES[:3], "", *LINES[3:]])
    with pytest.raises(UsageError, match="line 5: repeats round 1 of a; remove one of them"):
        read([*LINES[:4], LINES[1], *LINES[4:]])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [found for key in keys for found in ((value, key), *places(value[key]))]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The file with one field of one line replaced, dropped or swapped, or with its lines or bytes disturbed."""
    lines = list(LINES)
    at = draw(st.integers(0, len(lines) - 1))
    kind = draw(st.sampled_from(["set", "set", "set", "drop", "swap", "repeat", "lines", "bytes"]))
    if kind in ("set", "drop", "swap"):
        value = json.loads(lines[at])
        container, key = draw(st.sampled_from(places(value)))
        if kind == "drop":
            del container[key]
        elif kind == "set":
            container[key] = draw(JSON)
        else:
            other, its = draw(st.sampled_from(places(json.loads(lines[draw(st.integers(0, len(lines) - 1))]))))
            container[key] = other[its]
        lines[at] = json.dumps(value)
    elif kind == "repeat":
        lines.insert(draw(st.integers(0, len(lines))), lines[at])
    elif kind == "lines":
        lines = draw(st.permutations(lines))[: draw(st.integers(0, len(lines)))]
    data = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    if kind == "bytes":
        start, length = draw(st.integers(0, len(data))), draw(st.integers(0, 300))
        data = data[:start] + draw(st.binary(max_size=20)) + data[start + length :]
    return data


@settings(max_examples=400)
@given(mutated())
def test_any_changed_file_is_summarised_or_refused_in_one_line(data: bytes) -> None:
    try:
        contents = parse_contents("r.jsonl", data)
    except UsageError as error:
        said = str(error)
    else:
        record = summarise(contents.header, contents.runs, None)
        record.model_dump_json()
        whole = len(contents.runs) == len(slots_of(contents.header.config))
        assert judge(record).exit_code in ((0, 1, 3) if whole else (1, 3))
        return
    assert said.startswith("r.jsonl")
    assert len(said.splitlines()) == 1
    assert len(said) < 400


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "odd",
    [*map(nested, (100, 180, 190, 196, 200, 230, 260, 900)), 10**400, 10**4299, float("nan"), 1e308, "\u2028\x00"],
    ids=lambda odd: repr(odd)[:8],
)
def test_whatever_a_run_may_print_is_read_back_from_the_file(odd: object) -> None:
    printed = json.dumps({**RUNS[0].lines[0], "newer": odd})
    try:
        lines = parse_lines(printed)
    except GarbageError:
        assert repr(odd).startswith("[" * 150)  # only what is too deep is refused, while the run is at hand
        return
    written = RUNS[0].model_copy(update={"lines": lines}).model_dump_json()
    (kept,) = parse_contents("r.jsonl", f"{LINES[0]}\n{written}\n".encode()).runs
    assert kept.lines == lines or odd != odd
