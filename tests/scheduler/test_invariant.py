"""The invariant mode: whatever happens around a request, its logits are bitwise those of the request alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine import FixedShapes
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.preload import PRELOAD
from tests.scheduler.schedules import Asked, Bench, Schedule, schedules
from tests.tiny import VOCAB, tiny_model

FAMILIES = ("llama", "qwen3", "mixtral", "gemma3", "lfm2")
ON_OWN_CACHES = ("gemma3", "lfm2")  # row by row, so that they have neither paged KV nor shared forwards
HUNDREDS = settings(max_examples=200, suppress_health_check=list(HealthCheck))
FEW = settings(HUNDREDS, max_examples=12)

SHAPES = FixedShapes(4, 32)
# Neighbours of other lengths, some before it, some after it, one cancelled; and a prefix that was stored before.
CROWD = (Asked(20, 30), Asked(70, 9, arrives=1), Asked(33, 30, arrives=6, cancelled=4), Asked(1, 12, arrives=8))
OBSERVED = Asked(80, 16, arrives=3)
BESIDE = Schedule(OBSERVED, CROWD, SHAPES)
PRIMED = Schedule(OBSERVED, (), SHAPES, cache=10**9, primed=50)


@cache
def bench(name: str) -> Bench:
    return Bench(tiny_model(name), VOCAB)


def storages_of(name: str) -> tuple[Storage, ...]:
    return ("dense",) if name in ON_OWN_CACHES else ("dense", "paged")


def differing(name: str, schedule: Schedule) -> list[int]:
    return bench(name).differing_steps(schedule, bench(name).run(schedule))


@pytest.mark.parametrize("name", FAMILIES)
@FEW
@given(data=st.data())
def test_nothing_around_a_request_changes_a_bit(name: str, data: st.DataObject) -> None:
    assert differing(name, data.draw(schedules(storages_of(name), 100, 16))) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FAMILIES)
@HUNDREDS
@given(data=st.data())
def test_200_schedules(name: str, data: st.DataObject) -> None:
    assert differing(name, data.draw(schedules(storages_of(name), 600, 48))) == []


@pytest.mark.parametrize("schedule", [BESIDE, PRIMED], ids=["neighbours", "cache"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_normal_mode_fails_what_the_invariant_mode_passes(name: str, schedule: Schedule) -> None:
    assert differing(name, schedule) == []
    found = differing(name, replace(schedule, shapes=None))
    if not found and PRELOAD.blas != "mkl":
        pytest.skip("this library gives products as small as these the same bits in other shapes")
    assert found or (schedule is BESIDE and name in ON_OWN_CACHES)


def test_a_request_that_is_moved_out_keeps_its_keys_whatever_the_bound() -> None:
    schedule = Schedule(Asked(80, 40, priority=-1), (Asked(1, 100, arrives=4),), SHAPES, "paged", spare=0)
    handle = bench("llama").run(schedule)
    assert bench("llama").differing_steps(schedule, handle) == []
    assert handle.wait(0).preemptions > 0
    assert handle.wait(0).recomputed == 0


@pytest.mark.parametrize(("primed", "adopted"), [(31, 0), (32, 32), (33, 32), (63, 32), (64, 64), (79, 64), (80, 64)])
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_whole_chunks_are_adopted_and_no_others(name: str, primed: int, adopted: int) -> None:
    for storage in storages_of(name):
        schedule = replace(PRIMED, primed=primed, storage=storage)
        handle = bench(name).run(schedule)
        assert bench(name).differing_steps(schedule, handle) == []
        # a request keeps what precedes its last token, so one of 64 tokens keeps 32
        assert handle.wait(0).adopted == (adopted if primed % 32 else adopted - 32)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_many_keys_are_read_alike_in_every_storage(storage: Storage, exact: bool) -> None:
    crowd = (*CROWD, Asked(540, 12, arrives=2))  # blocks of the two lie between one another
    schedule = Schedule(Asked(505, 20, arrives=3), crowd, SHAPES, storage, cache=10**9, exact=exact)
    assert differing("llama", schedule) == []


def test_an_answer_is_never_adopted() -> None:
    """Decode steps give other keys than a prefill, so a next turn adopts of the last one the prompt alone."""
    schedule = Schedule(Asked(100, 8, arrives=40), (Asked(40, 30),), SHAPES, cache=10**9)
    handle = bench("llama").run(schedule)
    assert handle.wait(0).adopted == 32
    assert bench("llama").differing_steps(schedule, handle) == []
