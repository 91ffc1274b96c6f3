"""Requests on a driven scheduler that are checked together, and faults to put under them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxcel_engine.engine import Engine
from mlxcel_engine.scheduler import (
    Request,
    RequestHandle,
    SchedulerConfig,
)
from tests.conformance.traces import prompt
from tests.scheduler.driven import (
    CHUNK,
    KINDS,
    Driven,
    check,
    check_nothing_left,
    engine_of,
    rules,
)

CONFIG = SchedulerConfig(chunk=CHUNK)
LENGTHS = (3, 20, 9)
Patch = pytest.MonkeyPatch


def ask(length: int, tokens: int = 30, **options: Any) -> Request:
    return Request(prompt(length), rules(tokens), logprobs=True, **options)


class Crowd:
    """Requests on a driven scheduler, and how they are checked."""

    def __init__(self, kind: str, config: SchedulerConfig = CONFIG, blocks: int | None = None) -> None:
        self.name = KINDS[kind][0]
        self.scheduler = Driven(engine_of(kind, blocks), config)
        self.engine = self.scheduler._engine
        self.asked: list[tuple[RequestHandle, Request]] = []

    def submit(self, request: Request) -> RequestHandle:
        handle = self.scheduler.submit(request)
        self.asked.append((handle, request))
        return handle

    def finish(self, *but: RequestHandle) -> None:
        """Run to the end; all are what they are alone, and all have finished ``but`` those."""
        self.scheduler.finish()
        for handle, request in self.asked:
            result = check(handle, self.name, request)
            assert (result.finish_reason == "length") == (handle not in but), result.error
        check_nothing_left(self.scheduler)


def raising(engine: Engine, error: BaseException, at: int, method: str) -> Callable[..., Any]:
    """``engine.method``, but the call number ``at`` raises."""
    call, calls = getattr(engine, method), iter(range(1, 10**6))

    def replaced(*args: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise error
        return call(*args, **options)

    return replaced
