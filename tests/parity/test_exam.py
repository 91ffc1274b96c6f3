"""How much a run holds at a time, and what it does for each pair that differs."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.parity import exam
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.collect import collect as collect_stream
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import path_makers
from mlxcel_engine.prompts import Prompt
from tests.faults import Heard, here
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.records.parity import ParityRecord


@pytest.mark.parametrize(("every", "most"), [(False, 4), (True, 9)])
def test_logprobs_are_let_go_when_no_pair_waits_for_them(
    every: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, held = list[weakref.ref[Any]](), []

    def collect(*args: Any) -> Any:
        collected = collect_stream(*args)
        streams.append(weakref.ref(collected.stream))
        return collected

    def save(record: ParityRecord) -> None:
        held.append(sum(stream() is not None for stream in streams))

    monkeypatch.setattr(exam, "collect", collect)
    prompts = [Prompt(name, name, tuple(range(3, 12)), chat=False) for name in "abc"]
    paths = [make() for make in path_makers(4).values()]
    options = ParityOptions(6, 2048, all_pairs=every, teacher_forced=True)
    run_parity(here(), tiny_loaded(), [Case("greedy", GREEDY)], prompts, paths, options, Heard(), save)
    assert len(streams) == 3 * 2 * 9
    assert max(held) == most
    assert held[-1] <= 1
