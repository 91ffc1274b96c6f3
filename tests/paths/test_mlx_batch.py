"""``mlx-batch-N``: the neighbours really share forwards with the request, and are seen to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.engine.sampling import GREEDY, ResolvedSampling, SamplingConfig
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.paths import ForwardLog, PathRequest, batch_generator, mlx_lm_batch, path_makers
from mlxcel_engine.paths.batch_generator import batch_steps
from mlxcel_engine.paths.mlx_lm_batch import MlxLmBatch
from mlxcel_engine.paths.neighbours import Load, Neighbour, make_neighbours
from mlxcel_engine.prompts import Prompt, hash_ids
from tests.faults import row, run
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.paths import DecodePath

PROMPT = Prompt("p", "", tuple(range(3, 20)), chat=False)


def paths(width: int = 4) -> list[DecodePath]:
    makers = path_makers(width)
    return [makers["cli"](), makers[f"mlx-batch-{width}"]()]


@pytest.mark.parametrize("width", [2, 3, 4, 7])
def test_the_evidence_shows_the_width_and_the_prompt_alone(width: int) -> None:
    record = run(tiny_loaded(), paths(width), n=40)
    found = row(record, "cli", f"mlx-batch-{width}")
    assert (found.verdict, found.reason) == ("identical", "")
    evidence = found.evidence.right
    assert evidence is not None
    assert evidence.widest_batch == width
    assert evidence.partition == [(0, 17), (17, 18)]
    assert evidence.decode_forwards == 40
    assert evidence.notes == [f"{width - 1} of {width - 1} neighbours joined, {width - 1} left before it ended"]


def test_the_prompt_hash_is_that_of_the_request_and_not_of_a_neighbour() -> None:
    run_ = MlxLmBatch(4).run(tiny_loaded(), PathRequest(PROMPT, 16, 2048))
    list(run_.steps)
    assert run_.evidence().prompt_sha256 == hash_ids(PROMPT.ids)


def test_who_ends_in_the_requests_last_turn_did_not_leave_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator by hand: row 0 is the request, and both rows end in its third turn, or the neighbour's one before."""

    def ended(neighbour_ends: int) -> str:
        uids = iter((0, 1))

        def turn(number: int) -> tuple[list[Any], list[Any]]:
            ends = {0: 3, 1: neighbour_ends}
            reasons = {uid: "length" if number == last else None for uid, last in ends.items() if number <= last}
            return [], [
                SimpleNamespace(uid=uid, token=5, logprobs=mx.zeros(8), finish_reason=reason)
                for uid, reason in reasons.items()
            ]

        turns = iter([turn(number) for number in (1, 2, 3)])
        generator = SimpleNamespace(
            insert_segments=lambda **_: (next(uids),), next=lambda: next(turns), close=lambda: None
        )
        monkeypatch.setattr(batch_generator, "open_generator", lambda *_: generator)
        load = Load((Neighbour((3,), 0, 3, GREEDY),))
        steps = batch_steps(tiny_loaded(), PathRequest(PROMPT, 3, 2048), ForwardLog(len(PROMPT.ids)), load)
        assert len(list(steps)) == 3
        return str(load)

    assert ended(2) == "1 of 1 neighbours joined, 1 left before it ended"
    assert ended(3) == "1 of 1 neighbours joined, 0 left before it ended"


def test_a_request_that_ends_before_anyone_joins_shows_nothing() -> None:
    record = run(tiny_loaded(), paths(), n=1)
    assert [(r.verdict, r.reason) for r in record.rows] == [
        ("n/a", "mlx-batch-4: the request ended before a neighbour had joined")
    ]


def test_neighbours_that_never_come_make_the_row_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_lm_batch, "CannotShowError", RuntimeError)
    real = make_neighbours
    monkeypatch.setattr(mlx_lm_batch, "make_neighbours", lambda *args: real(*args)[:2])
    assert [r.verdict for r in run(tiny_loaded(), paths(), n=12).rows] == ["identical"]
    monkeypatch.setattr(mlx_lm_batch, "make_neighbours", lambda *args: real(*args) * 2)
    (bad,) = run(tiny_loaded(), paths(), n=24).rows
    assert bad.verdict == "invalid"
    assert "its widest batch had 7 rows, not up to 4" in bad.reason


def test_it_is_unavailable_where_the_caches_cannot_enter() -> None:
    record = run(tiny_loaded("deepseek_v41"), paths())
    assert [r.verdict for r in record.rows] == ["n/a"]
    assert "cannot enter BatchGenerator" in record.rows[0].reason


def test_the_seeded_request_draws_the_same_beside_others() -> None:
    cases = [Case("seeded", ResolvedSampling(SamplingConfig.seeded(5)))]
    (found,) = run(tiny_loaded(), paths(), cases=cases, n=40).rows
    assert (found.verdict, found.logits) == ("identical", "close")


@given(
    st.integers(1, 4000),
    st.integers(1, 300),
    st.integers(1, 31),
    st.none() | st.integers(4301, 9000),
)
def test_neighbours_differ_in_length_join_in_turn_and_leave_in_time(
    length: int, tokens: int, count: int, context: int | None
) -> None:
    prompt = tuple(range(length))
    found = make_neighbours(prompt, GREEDY, tokens, count, context)
    assert len(found) == count
    assert [one.joins for one in found] == list(range(1, count + 1))
    for one in found:
        assert len(one.prompt) != length
        assert len(one.prompt) >= 1
        assert set(one.prompt) <= set(prompt)
        assert context is None or len(one.prompt) + one.tokens <= context
        assert one.tokens == 1 or one.joins + one.tokens < tokens
    assert found == make_neighbours(prompt, GREEDY, tokens, count, context)


def test_neighbours_have_seeds_of_their_own_and_force_nothing() -> None:
    sampling = ResolvedSampling(SamplingConfig.seeded(7), forced=(1, 2))
    found = make_neighbours(PROMPT.ids, sampling, 20, 3, None)
    assert [one.sampling.config.seed for one in found] == [8, 9, 10]
    assert {one.sampling.forced for one in found} == {()}
