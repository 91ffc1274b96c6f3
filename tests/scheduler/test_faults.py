"""Whatever goes wrong has its defined end, and the neighbours do not notice: they equal themselves alone."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxcel_engine.engine import Engine, SamplingConfig, resolve_sampling
from mlxcel_engine.errors import EngineError
from mlxcel_engine.scheduler import (
    Request,
    RequestFailed,
    TokenEvent,
)
from tests.conformance.traces import prompt
from tests.scheduler.crowd import LENGTHS, Crowd, Patch, ask, raising
from tests.scheduler.driven import (
    KINDS,
    rules,
)


def model_raises(engine: Engine, patch: Patch, at: int, error: BaseException, rows: int | None = None) -> None:
    """Let the model raise in its forward number ``at`` of one token (of ``rows`` rows, if given)."""
    model, calls = engine._model, iter(range(1, 10**6))

    def replaced(inputs: mx.array, cache: Any) -> mx.array:
        if inputs.shape[1] == 1 and rows in (None, inputs.shape[0]) and next(calls) == at:
            raise error
        return model(inputs, cache=cache)

    patch.setattr(engine, "_model", replaced)


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_a_forward_that_raises_fails_the_rows_of_its_step(kind: str, at: int, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    failed = [crowd.submit(ask(length)) for length in LENGTHS]
    model_raises(crowd.engine, monkeypatch, at, ValueError("it broke"), rows=3)
    crowd.scheduler.turn(4 + at)  # three rows decode from the fifth tick on
    late = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.finish(*failed)
    for handle in failed:
        with pytest.raises(RequestFailed, match=r"decode step failed \(ValueError: it broke\)") as caught:
            handle.result(0)
        assert isinstance(caught.value.__cause__, ValueError)
        assert len(handle._events) >= at - 1  # what was queued before was given out
    assert crowd.scheduler.metrics.failed == 3
    assert all(handle.done for handle in late)


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_row_by_row_only_the_row_fails_whose_forward_raises(kind: str, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.scheduler.turn(8)
    model_raises(crowd.engine, monkeypatch, 2, ValueError("it broke"))
    crowd.finish(handles[1])
    assert "ValueError: it broke" in str(handles[1].wait(0).error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefill_that_raises_fails_its_request(kind: str, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length)) for length in (*LENGTHS, 40)]
    # the pieces are [0,2), [0,16), [16,19), [0,8), ...
    monkeypatch.setattr(crowd.engine, "prefill", raising(crowd.engine, MemoryError("too long"), 3, "prefill"))
    crowd.finish(handles[1])
    assert "prefill failed (MemoryError: too long)" in str(handles[1].wait(0).error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_nan_fails_alone(kind: str, monkeypatch: Patch) -> None:
    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.scheduler.turn(8)
    model, batched = crowd.engine._model, crowd.engine.support.batched
    steps = iter(range(10**6))

    def poisoned(inputs: mx.array, cache: Any) -> mx.array:
        logits = model(inputs, cache=cache)
        if next(steps) != (3 if batched else 3 * 3 + 1):
            return logits
        row = mx.arange(logits.shape[0])[:, None, None] == (1 if batched else 0)
        return mx.where(row, mx.nan, logits)

    monkeypatch.setattr(crowd.engine, "_model", poisoned)
    crowd.finish(handles[1])
    assert "masked or NaN" in str(handles[1].wait(0).error)


def test_evaluation_that_fails_late_fails_the_rows_of_the_step(monkeypatch: Patch) -> None:
    crowd = Crowd("dense")
    failed = [crowd.submit(ask(length)) for length in LENGTHS]
    crowd.scheduler.turn(6)
    monkeypatch.setattr(crowd.engine, "collect", raising(crowd.engine, RuntimeError("[malloc] no"), 1, "collect"))
    crowd.scheduler.turn()
    assert all("[malloc] no" in str(handle.wait(0).error) for handle in failed)
    crowd.submit(ask(12))
    crowd.finish(*failed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_raises_fails_its_request(kind: str) -> None:
    def on_token(event: TokenEvent) -> None:
        if event.index == 3:
            raise KeyError("socket")

    crowd = Crowd(kind)
    handles = [crowd.submit(ask(length, on_token=on_token if length == 20 else None)) for length in LENGTHS]
    crowd.finish(handles[1])
    assert "on_token callback raised (KeyError: 'socket')" in str(handles[1].wait(0).error)
    assert len(handles[1]._events) == 4


def test_a_detokenizer_that_raises_fails_its_request() -> None:
    class Broken:
        last_segment = ""

        def add_token(self, token: int) -> None:
            raise UnicodeError("no such token")

        def finalize(self) -> None: ...

    crowd = Crowd("dense")
    handles = [crowd.submit(ask(length, detokenizer=Broken() if length == 20 else None)) for length in LENGTHS]
    crowd.finish(handles[1])
    assert "could not be read (UnicodeError: no such token)" in str(handles[1].wait(0).error)


def test_ids_without_an_embedding_are_refused_and_a_bias_outside_the_vocabulary_fails_its_request() -> None:
    crowd = Crowd("dense")
    good = crowd.submit(ask(9))
    with pytest.raises(EngineError, match="token id 1000000 is outside the vocabulary of 300"):
        crowd.scheduler.submit(Request((5, 10**6, 4), rules(5)))
    biased = resolve_sampling(SamplingConfig(logit_bias={10**6: 1.0}))
    bad = crowd.scheduler.submit(Request(prompt(9), rules(5), biased))
    crowd.finish()
    assert good.done
    assert "outside the vocabulary" in str(bad.wait(0).error)
