"""Today's streams against those of an earlier record."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from mlxcel_engine.errors import UsageError
from mlxcel_engine.parity.against import check_comparable, compare_with_record
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.records.parity import CaseRecord, ParityRecord, StreamRecord, TopLogprob
from tests.faults import FaultyEngine, own_paths, run
from tests.loaded import tiny_loaded


@pytest.fixture(scope="module")
def record() -> ParityRecord:
    return run(tiny_loaded(), n=12)


def altered(record: ParityRecord, **changes: Any) -> ParityRecord:
    first = record.streams[0].model_copy(update=changes)
    return record.model_copy(update={"streams": [first, *record.streams[1:]]})


def moved(stream: StreamRecord, step: int, by: dict[int, float]) -> list[list[TopLogprob]]:
    """The stream's likeliest tokens with the logprobs at some places of one step moved."""
    tops = [list(step) for step in stream.top_logprobs]
    for place, amount in by.items():
        item = tops[step][place]
        tops[step][place] = item.model_copy(update={"logprob": item.logprob + amount})
    return tops


def test_a_run_equals_its_own_record(record: ParityRecord) -> None:
    rows = compare_with_record(record, ParityRecord.model_validate_json(record.model_dump_json()))
    assert [(row.left, row.right) for row in rows] == [(s.path, f"{s.path}@record") for s in record.streams]
    assert {(row.verdict, row.max_abs_logprob_diff) for row in rows} == {("identical", 0.0)}
    assert judge(rows).exit_code == 0


def test_a_regression_since_yesterday_is_found(record: ParityRecord) -> None:
    today = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.3)], n=12)
    rows = compare_with_record(today, record)
    assert [row.verdict for row in rows] == ["identical", "identical", "diverged"]
    ids = [record.streams[2].ids, today.streams[2].ids]
    assert rows[2].index == next(i for i in range(12) if ids[0][i] != ids[1][i])
    assert judge(rows).exit_code == 1


def test_verdicts_by_hand(record: ParityRecord) -> None:
    cli = record.streams[0]
    second = [top[1].token for top in cli.top_logprobs]
    lead = [top[0].logprob - top[1].logprob for top in cli.top_logprobs]

    def verdict(**changes: Any) -> tuple[str, int | None]:
        row = compare_with_record(altered(record, **changes), record)[0]
        return row.verdict, row.index

    assert verdict(top_logprobs=moved(cli, 3, {2: 1e-3})) == ("identical", None)
    assert verdict(top_logprobs=moved(cli, 3, {2: 1e-1})) == ("drift", None)
    assert verdict(ids=cli.ids[:5], top_logprobs=cli.top_logprobs[:5]) == ("diverged", 5)
    assert verdict(finish_reason="stop") == ("diverged", 12)
    assert verdict(text="other") == ("diverged", 12)
    assert verdict(prompt_sha256="other") == ("invalid", None)
    assert verdict(invalid="fell back") == ("invalid", None)
    assert verdict(unavailable="no kernel") == ("n/a", None)
    parted = [*cli.ids[:6], second[6], *cli.ids[7:]]
    assert verdict(ids=parted) == ("diverged", 6)
    assert verdict(ids=parted, case="seeded") == ("n/a", None)
    assert lead[6] > 4e-3


def test_a_tie_within_the_noise_is_a_near_tie(record: ParityRecord) -> None:
    cli = record.streams[0]
    top = cli.top_logprobs[6]
    tie = [[*step] for step in cli.top_logprobs]
    tie[6] = [top[0], top[1].model_copy(update={"logprob": top[0].logprob - 1e-4}), *top[2:]]
    earlier = altered(record, top_logprobs=tie)
    swapped = [[*step] for step in tie]
    swapped[2] = moved(earlier.streams[0], 2, {1: 1e-3})[2]
    swapped[6] = [tie[6][1].model_copy(update={"logprob": top[0].logprob + 1e-4}), tie[6][0], *tie[6][2:]]
    now = altered(record, top_logprobs=swapped, ids=[*cli.ids[:6], top[1].token, *cli.ids[7:]])
    row = compare_with_record(now, earlier)[0]
    assert (row.verdict, row.index, row.left_token, row.right_token) == ("near-tie", 6, top[1].token, top[0].token)


def test_a_token_that_is_not_its_own_best_diverges_wherever_it_stands(record: ParityRecord) -> None:
    cli = record.streams[0]
    unlikely = next(i for i in range(300) if i not in {item.token for item in cli.top_logprobs[6]})
    for token in (unlikely, cli.top_logprobs[6][1].token):
        odd = altered(record, ids=[*cli.ids[:6], token, *cli.ids[7:]])
        for now, earlier in ((odd, record), (record, odd)):
            row = compare_with_record(now, earlier)[0]
            assert (row.verdict, row.index) == ("diverged", 6)
            assert row.reason == "one of them took a token that is not its own best"


def test_a_number_that_is_none_is_never_noise_and_equal_infinities_are(record: ParityRecord) -> None:
    def tops(value: float, place: int) -> list[list[TopLogprob]]:
        """The likeliest tokens with one of each step at ``value``."""
        found = [list(step) for step in record.streams[0].top_logprobs]
        for step in found:
            step[place] = step[place].model_copy(update={"logprob": value})
        return found

    for place in (0, 4):
        broken = altered(record, top_logprobs=tops(nan, place))
        for now, earlier in ((broken, record), (record, broken), (broken, broken)):
            assert compare_with_record(now, earlier)[0].verdict == "drift"
        masked = altered(record, top_logprobs=tops(-inf, place))
        assert compare_with_record(masked, record)[0].verdict == "drift"
        row = compare_with_record(masked, masked)[0]
        assert (row.verdict, row.max_abs_logprob_diff) == ("identical", 0.0)


def with_sampling(case: CaseRecord, **settings: Any) -> CaseRecord:
    return case.model_copy(update={"sampling": {**case.sampling, **settings}})


@pytest.mark.parametrize("setting", ["model", "--max-tokens", "top_k of case greedy"])
def test_other_settings_are_refused_by_name(setting: str, record: ParityRecord) -> None:
    config = record.config
    other: dict[str, dict[str, Any]] = {
        "model": {"model": config.model.model_copy(update={"label": "another"})},
        "--max-tokens": {"max_tokens": 99},
        "top_k of case greedy": {"cases": [with_sampling(config.cases[0], top_k=3)]},
    }
    with pytest.raises(UsageError, match=f"--against: {setting} is"):
        check_comparable(config.model_copy(update=other[setting]), record)
    check_comparable(config, record)


def test_a_record_that_is_cut_off_or_has_nothing_in_common_is_refused(record: ParityRecord) -> None:
    with pytest.raises(UsageError, match="--against: the record is incomplete"):
        check_comparable(record.config, record.model_copy(update={"complete": False}))
    other = record.config.model_copy(update={"paths": ["dense", "paged"]})
    none_ran = [stream.model_copy(update={"unavailable": "no kernel"}) for stream in record.streams]
    for config, earlier in ((other, record), (record.config, record.model_copy(update={"streams": none_ran}))):
        with pytest.raises(UsageError, match="--against: the record has no stream of these cases, prompts and paths"):
            check_comparable(config, earlier)


def test_what_only_the_record_has_is_a_row(record: ParityRecord) -> None:
    now = record.model_copy(update={"streams": record.streams[:2]})
    rows = compare_with_record(now, record)
    assert [(row.left, row.verdict, row.reason) for row in rows[2:]] == [("engine", "n/a", "it was not run now")]
    assert (rows[2].evidence.left, rows[2].evidence.right) == (None, record.streams[2].evidence)


def renamed(record: ParityRecord, **effective: Any) -> ParityRecord:
    """The record with its case called as that of ``--sampling`` is."""
    case = record.config.cases[0]
    case = case.model_copy(update={"name": "sampling", "effective": case.effective.model_copy(update=effective)})
    streams = [stream.model_copy(update={"case": "sampling"}) for stream in record.streams]
    config = record.config.model_copy(update={"cases": [case]})
    return record.model_copy(update={"config": config, "streams": streams})


def test_a_greedy_case_of_any_name_is_judged_and_a_drawn_one_is_not(record: ParityRecord) -> None:
    cli = record.streams[0]
    first, second, *others = cli.top_logprobs[6]
    swapped = [
        second.model_copy(update={"logprob": first.logprob}),
        first.model_copy(update={"logprob": second.logprob}),
    ]
    tops = [*cli.top_logprobs[:6], [*swapped, *others], *cli.top_logprobs[7:]]
    parted = altered(record, ids=[*cli.ids[:6], second.token, *cli.ids[7:]], top_logprobs=tops)
    row = compare_with_record(renamed(parted), renamed(record), decode=lambda token: f"<{token}>")[0]
    assert (row.verdict, row.reason[:7]) == ("diverged", "the gap")
    assert (row.left_text, row.right_text) == (f"<{row.left_token}>", f"<{row.right_token}>")
    row = compare_with_record(renamed(parted, seed=7), renamed(record, seed=7))[0]
    assert (row.verdict, row.reason) == ("diverged", "a seeded draw cannot be judged from a record")
    assert (row.left_text, row.right_text) == (None, None)
