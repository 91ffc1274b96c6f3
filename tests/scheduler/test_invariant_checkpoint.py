"""The invariant mode on the embedded default checkpoint, dequantized to float32; which BLAS, the environment says."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from mlxcel_engine.device import select_device
from mlxcel_engine.engine import FixedShapes
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import load
from mlxcel_engine.loader.policy import resolve_policy
from tests.scheduler.schedules import Asked, Bench, Schedule, schedules

TWENTY = settings(max_examples=20, suppress_health_check=list(HealthCheck))
CROWD = (Asked(20, 30), Asked(150, 9, arrives=1), Asked(33, 30, arrives=6, cancelled=4), Asked(1, 12, arrives=8))
CROWDED = Schedule(Asked(160, 12, arrives=3), CROWD, FixedShapes(4, 64), cache=10**9, primed=100)


@pytest.fixture(scope="module")
def bench() -> Bench:
    cache = CheckpointCache(default_cache_root(os.environ))
    loaded = load("default", resolve_policy(select_device("auto")), cache, lambda _: None)
    return Bench(loaded.model, loaded.record.vocab_size)


@pytest.mark.checkpoint
@pytest.mark.parametrize("exact", [True, False])
def test_a_crowd_and_a_cache_change_no_bit_and_do_without_the_mode(bench: Bench, exact: bool) -> None:
    for shapes in (CROWDED.shapes, None):
        schedule = Schedule(CROWDED.observed, CROWD, shapes, cache=10**9, primed=100, exact=exact)
        handle = bench.run(schedule)
        assert bool(bench.differing_steps(schedule, handle)) == (shapes is None)


@pytest.mark.long
@pytest.mark.timeout(7200)
@TWENTY
@given(schedule=schedules(("dense", "paged"), 600, 24))
def test_20_schedules(bench: Bench, schedule: Schedule) -> None:
    assert bench.differing_steps(schedule, bench.run(schedule)) == []
