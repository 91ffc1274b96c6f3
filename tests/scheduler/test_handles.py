"""What a client sees of its request: tokens, text, streams, callbacks, times."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.engine import Engine, StopRules
from mlxcel_engine.loader.synthetic import byte_tokenizer
from mlxcel_engine.scheduler import BatchScheduler, Request, RequestHandle, SchedulerClosed, SchedulerConfig
from tests.conformance.traces import prompt
from tests.scheduler.driven import (
    CHUNK,
    Driven,
    alone,
    check,
    check_nothing_left,
    model_of,
    rules,
)

if TYPE_CHECKING:
    pass

CONFIG = SchedulerConfig(chunk=CHUNK)


def text_of(tokens: list[int]) -> str:
    """The whole text of ids below 256."""
    detokenizer = byte_tokenizer().detokenizer
    for token in tokens:
        detokenizer.add_token(token)
    detokenizer.finalize()
    return str(detokenizer.text)


def test_text_stops_at_a_stop_string_and_at_an_eos() -> None:
    model, ids = model_of("llama"), prompt(9)
    whole = alone("llama", ids).tokens(50)
    eos = whole[20]
    before = whole[: whole.index(eos)]
    text = text_of(before)
    stop = text[len(text) // 2 :][:2]
    with BatchScheduler(Engine(model), CONFIG) as scheduler:
        ends = [
            scheduler.submit(
                Request(ids, StopRules(frozenset({eos}), 50, stops), detokenizer=byte_tokenizer().detokenizer)
            )
            for stops in ((), (stop,))
        ]
        streams = ["".join(event.text for event in handle) for handle in ends]
    first, second = (handle.result() for handle in ends)
    assert streams == [handle.text() for handle in ends] == [text, text.partition(stop)[0]]
    assert (first.finish_reason, second.finish_reason) == ("stop", "stop")
    assert first.finish is not None
    assert second.finish is not None
    assert (first.finish.detail, second.finish.stop_string) == ("eos", stop)
    assert list(first.tokens) == [*before, eos]


def test_a_reader_that_comes_late_and_one_that_never_comes() -> None:
    with BatchScheduler(Engine(model_of("llama")), CONFIG) as scheduler:
        unread = [scheduler.submit(Request(prompt(5), rules(50), logprobs=True)) for _ in range(3)]
        read = scheduler.submit(Request(prompt(5), rules(50)))
        assert read.result(60).finish_reason == "length"
        del unread
    assert [event.token for event in read] == [event.token for event in read] == alone("llama", prompt(5)).tokens(50)


def test_handles_can_be_awaited_and_iterated_in_an_event_loop() -> None:
    async def client(scheduler: BatchScheduler) -> None:
        handle = scheduler.submit(Request(prompt(12), rules(30)))
        tokens = [event.token async for event in handle]
        assert tokens == alone("llama", prompt(12)).tokens(30)
        result, other = await asyncio.gather(handle, scheduler.submit(Request(prompt(3), rules(9))))
        assert list(result.tokens) == tokens
        assert len(other.tokens) == 9
        cancelled = scheduler.submit(Request(prompt(12), rules(10_000)))
        async for _ in cancelled:
            cancelled.cancel()
        assert (await cancelled).finish_reason == "cancelled"

    with BatchScheduler(Engine(model_of("llama")), CONFIG) as scheduler:
        asyncio.run(client(scheduler))


def test_an_event_loop_that_went_away_does_not_disturb_the_others() -> None:
    scheduler = Driven(Engine(model_of("llama")), CONFIG)
    handle = scheduler.submit(Request(prompt(5), rules(10)))

    loop = asyncio.new_event_loop()

    async def reads() -> None:
        async for _ in handle:
            pass

    reader = loop.create_task(reads())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert not reader.done()
    loop.close()
    scheduler.finish()
    assert check(handle, "llama", Request(prompt(5), rules(10))).finish_reason == "length"


def test_zero_tokens_end_at_once_without_a_forward() -> None:
    scheduler = Driven(Engine(model_of("llama")), CONFIG)
    result = scheduler.submit(Request(prompt(5), rules(0))).result(0)
    assert (result.tokens, result.text, result.finish_reason, result.forwarded) == ((), "", "length", 0)
    assert list(scheduler.submit(Request(prompt(5), rules(0)))) == []
    assert scheduler.metrics.submitted == 0


def test_a_callback_may_submit_cancel_and_shut_down() -> None:
    scheduler = BatchScheduler(Engine(model_of("llama")), CONFIG)
    second: list[RequestHandle] = []

    ready = threading.Event()

    def on_token(event: object) -> None:
        ready.wait(60)
        if not second:
            second.append(scheduler.submit(Request(prompt(3), rules(1000))))
            first.cancel()
            scheduler.shutdown(drain=False)

    first = scheduler.submit(Request(prompt(3), rules(1000), on_token=on_token))
    ready.set()
    assert first.wait(60).finish_reason in ("cancelled", "error")
    scheduler.shutdown(timeout=60)
    with pytest.raises(SchedulerClosed):
        second[0].result(60)
    check_nothing_left(scheduler)


def test_timings_are_in_order() -> None:
    before = time.perf_counter()
    with BatchScheduler(Engine(model_of("llama")), CONFIG) as scheduler:
        timings = scheduler.submit(Request(prompt(30), rules(5))).result().timings
    assert timings.admitted is not None
    times = [before, timings.submitted, timings.admitted, *timings.tokens, timings.ended]
    assert times == sorted(times)
    assert len(timings.tokens) == 5
    assert timings.ttft == timings.tokens[0] - timings.submitted
    assert timings.decode_tok_s == 4 / (timings.tokens[-1] - timings.tokens[0])
    assert replace(timings, tokens=timings.tokens[:1]).decode_tok_s is None
    assert replace(timings, tokens=()).ttft is None
