"""Cancel and shutdown in every state: a defined end each, neighbours equal alone, nothing left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlxcel_engine.scheduler import (
    RequestHandle,
    SchedulerClosed,
)
from mlxcel_engine.scheduler.inbox import Mode
from tests.scheduler.crowd import CONFIG, Crowd, ask
from tests.scheduler.driven import (
    CHUNK,
    KINDS,
    check,
    check_nothing_left,
)


def queued(crowd: Crowd) -> RequestHandle:
    for _ in range(crowd.scheduler._config.max_batch):
        crowd.submit(ask(3, 50))
    handle = crowd.submit(ask(9))
    crowd.scheduler.turn(4)
    assert crowd.scheduler.metrics.queued == 1
    return handle


def between_chunks(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(3))
    handle = crowd.submit(ask(5 * CHUNK))
    crowd.scheduler.turn(3)
    assert crowd.scheduler.metrics.prefilling == 1
    return handle


def decoding(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(3))
    handle = crowd.submit(ask(9))
    crowd.scheduler.turn(6)
    assert crowd.scheduler.metrics.decoding == 2
    return handle


def preempted(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(40, 50))
    handle = crowd.submit(ask(40, 50))
    while not crowd.scheduler.metrics.detached:
        crowd.scheduler.turn()
    return handle


def last_step_ahead(crowd: Crowd) -> RequestHandle:
    crowd.submit(ask(3))
    handle = crowd.submit(ask(1, 4))
    while len(handle._events) < 3:
        crowd.scheduler.turn()
    return handle


STATES = {
    "queued": queued,
    "between prefill chunks": between_chunks,
    "decoding": decoding,
    "preempted": preempted,
    "last step ahead": last_step_ahead,
}


def crowd_for(kind: str, detached_bytes: int = 10**9) -> Crowd:
    """Room for 8 blocks."""
    tight = replace(CONFIG, max_batch=3, detached_bytes=detached_bytes)
    if kind == "paged":
        return Crowd(kind, tight, blocks=8)
    return Crowd(kind, replace(tight, kv_tokens=128))


@pytest.mark.parametrize("detached_bytes", [10**9, 0], ids=["kept", "recomputed"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_cancel_in_every_state(kind: str, state: str, detached_bytes: int) -> None:
    crowd = crowd_for(kind, detached_bytes)
    handle = STATES[state](crowd)
    handle.cancel()
    handle.cancel()
    crowd.scheduler.turn()
    result = handle.result(0)
    assert (result.finish_reason, result.error) == ("cancelled", None)
    assert [event.token for event in handle] == list(result.tokens)
    handle.cancel()
    crowd.finish(handle)


@pytest.mark.parametrize("detached_bytes", [10**9, 0], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_was_moved_out_comes_back_as_if_never_stopped(kind: str, detached_bytes: int) -> None:
    crowd = crowd_for(kind, detached_bytes)
    handle = preempted(crowd)
    crowd.finish()
    result = handle.result(0)
    assert result.preemptions >= 1
    assert (result.recomputed > 0) == (detached_bytes == 0)
    assert crowd.scheduler.metrics.recomputed_rows == (crowd.scheduler.metrics.preemptions if not detached_bytes else 0)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_without_drain_ends_every_state_at_once(kind: str, state: str) -> None:
    crowd = crowd_for(kind)
    STATES[state](crowd)
    crowd.scheduler._inbox.close(Mode.STOPPING)
    assert not crowd.scheduler.turn()
    crowd.scheduler.end()
    for handle, request in crowd.asked:
        result = check(handle, crowd.name, request)
        if result.finish_reason == "length":
            continue
        with pytest.raises(SchedulerClosed, match="was shut down before"):
            handle.result(0)
        with pytest.raises(SchedulerClosed):
            list(handle)
    check_nothing_left(crowd.scheduler)
    with pytest.raises(SchedulerClosed, match="takes no requests"):
        crowd.scheduler.submit(ask(3))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_with_drain_lets_the_admitted_ones_end(kind: str, state: str) -> None:
    crowd = crowd_for(kind)
    chosen = STATES[state](crowd)
    crowd.scheduler._inbox.close(Mode.DRAINING)
    while crowd.scheduler.turn():
        pass
    crowd.scheduler.end()
    for handle, request in crowd.asked:
        waits = state == "queued" and handle is chosen
        assert check(handle, crowd.name, request).finish_reason == ("error" if waits else "length")
    check_nothing_left(crowd.scheduler)


def test_shutdown_can_become_stricter_but_not_milder() -> None:
    crowd = crowd_for("dense")
    decoding(crowd)
    crowd.scheduler._inbox.close(Mode.DRAINING)
    assert crowd.scheduler.turn()
    crowd.scheduler._inbox.close(Mode.STOPPING)
    crowd.scheduler._inbox.close(Mode.DRAINING)
    assert not crowd.scheduler.turn()
    crowd.scheduler.end()
    check_nothing_left(crowd.scheduler)
