"""``server``: our :class:`~mlxcel_engine.scheduler.BatchScheduler`, from submission to the tokens on the handle."""

from __future__ import annotations

from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from mlxcel_engine.bench.loops.engine import engine_config, paged_calls, prefill_chunk, unavailable_storage
from mlxcel_engine.bench.timing import StreamToken
from mlxcel_engine.engine import Engine, FixedShapes, StopRules
from mlxcel_engine.scheduler import BatchScheduler, Request, RequestHandle, SchedulerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.bench.loops.base import LoopSettings, Prompts, StreamTokens
    from mlxcel_engine.loader.load import LoadedModel

_PROMPT_CACHE_BYTES = 2**32
_TELL_EVERY = 0.5  # seconds


class ServerLoop:
    """One scheduler for all requests; storage ``auto`` is dense. ``shapes`` are those of the invariant mode."""

    chooses_storage = True
    caches_prompts = True

    def __init__(self, loaded: LoadedModel, shapes: FixedShapes | None = None) -> None:
        self.name = "server" if shapes is None else "server-invariant"
        self._loaded = loaded
        self._shapes = shapes

    def unavailable(self, settings: LoopSettings) -> str | None:
        """See :meth:`DecodeLoop.unavailable`."""
        return unavailable_storage(self._loaded.model, settings)

    @contextmanager
    def open(self, settings: LoopSettings) -> Iterator[ServerSession]:
        """See :meth:`DecodeLoop.open`."""
        engine = Engine(self._loaded.model, engine_config(settings, self._shapes))
        defaults = SchedulerConfig()
        config = SchedulerConfig(
            max_batch=max(settings.batch, defaults.max_batch),
            queue=max(settings.batch, defaults.queue),
            chunk=settings.chunk,
            prompt_cache_bytes=_PROMPT_CACHE_BYTES if settings.prompt_cache else 0,
        )
        with BatchScheduler(engine, config) as scheduler:
            yield ServerSession(self._loaded, engine, scheduler, settings)


class ServerSession:
    """Every stream is read by a thread of its own, as the clients of a server are. Implements :class:`Session`."""

    def __init__(self, loaded: LoadedModel, engine: Engine, scheduler: BatchScheduler, settings: LoopSettings) -> None:
        self._loaded, self._engine, self._scheduler, self._settings = loaded, engine, scheduler, settings
        self.storage = scheduler.storage
        self.chunk = prefill_chunk(engine, settings)
        self.adopted_tokens = 0

    @property
    def attention_calls(self) -> int | None:
        """See :attr:`Session.attention_calls`."""
        return paged_calls(self._engine)

    def run(self, prompts: Prompts, max_tokens: int) -> StreamTokens:
        """See :meth:`Session.run`."""
        rules = StopRules(self._settings.eos_ids, max_tokens)
        requests = [Request(prompt, rules, detokenizer=self._loaded.tokenizer.detokenizer) for prompt in prompts]
        pieces = self._scheduler.metrics.prefill_pieces
        inbox: SimpleQueue[StreamToken | Exception] = SimpleQueue()
        handles = [self._scheduler.submit(request) for request in requests]
        readers = [Thread(target=_read, args=(index, handle, inbox)) for index, handle in enumerate(handles)]
        for reader in readers:
            reader.start()
        running = len(prompts)
        try:
            while running:
                try:
                    item = inbox.get(timeout=_TELL_EVERY)
                except Empty:
                    through = (self._scheduler.metrics.prefill_pieces - pieces) * self.chunk
                    self._settings.tell_prefill(min(through, sum(map(len, prompts))))
                    continue
                if isinstance(item, Exception):
                    raise item
                running -= item.finish_reason is not None
                yield item
        finally:
            for handle in handles:
                handle.cancel()
            for reader in readers:
                reader.join()
            self.adopted_tokens += sum(handle.wait().adopted for handle in handles)


def _read(stream: int, handle: RequestHandle, inbox: SimpleQueue[StreamToken | Exception]) -> None:
    """Hand the tokens on with the time at which they were put on the handle, or what went wrong.

    Not the time at which this thread woke: it waits for the interpreter while others use it, and would tell of itself.
    """
    try:
        for event in handle:
            reason = event.finish.reason if event.finish is not None else None
            inbox.put(StreamToken(stream, event.token, reason, event.at))
    except Exception as error:
        inbox.put(error)
