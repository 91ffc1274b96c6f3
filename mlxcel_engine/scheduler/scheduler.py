"""``BatchScheduler``: what an MLX server runs below its HTTP layer."""

from __future__ import annotations

import atexit
import time
from itertools import count
from pathlib import Path
from threading import Thread, current_thread
from typing import TYPE_CHECKING

from mlxcel_engine.engine import PrefillPlan, RowProgress, SequenceSpec, token_budget
from mlxcel_engine.engine.finish import Finish
from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS, blocks_for
from mlxcel_engine.errors import EngineError
from mlxcel_engine.loader.evaluate import evaluate_everything
from mlxcel_engine.scheduler.config import SchedulerConfig
from mlxcel_engine.scheduler.handle import RequestHandle
from mlxcel_engine.scheduler.inbox import Inbox, Mode
from mlxcel_engine.scheduler.policy import rank
from mlxcel_engine.scheduler.room import kv_blocks
from mlxcel_engine.scheduler.ticket import Ticket
from mlxcel_engine.scheduler.worker import Worker

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from mlxcel_engine.engine import Engine
    from mlxcel_engine.scheduler.metrics import SchedulerMetrics
    from mlxcel_engine.scheduler.request import Request

_EXIT_S = 1.0  # a thread takes milliseconds to go


class BatchScheduler:
    """Runs requests on an engine, which belongs to its worker thread until :meth:`shutdown`.

    All methods may be called from any thread. ``with`` waits for every request at its end, or, when it is left by an
    exception, stops at once.
    """

    def __init__(self, engine: Engine, config: SchedulerConfig | None = None) -> None:
        """Start the worker. Whatever is lazy in the model is evaluated here, since another thread could not.

        Raises:
            EngineError: the engine has open sequences, or a bound of KV beside pools of fixed size.

        """
        self._config = config or SchedulerConfig()
        if engine.open_sequences:
            raise EngineError(f"the engine has {engine.open_sequences} open sequences; a scheduler needs it for itself")
        if engine.kv_usage.total is not None and self._config.kv_tokens is not None:
            raise EngineError(f"kv_tokens={self._config.kv_tokens}: the engine's pools have a fixed size; leave it out")
        evaluate_everything(engine.model)
        self._engine = engine
        self._blocks = kv_blocks(engine, self._config)
        self._serial = count()
        self._inbox = Inbox(self._config.queue)
        self._worker = Worker(engine, self._config, self._inbox)
        self._thread = Thread(target=self._worker.run, name="mlxcel-scheduler", daemon=True)
        self._start()

    def _start(self) -> None:
        self._thread.start()
        atexit.register(self._leave)

    @property
    def metrics(self) -> SchedulerMetrics:
        """The snapshot of the last tick."""
        return self._worker.metrics

    @property
    def storage(self) -> str:
        """What holds the KV; see :attr:`Engine.storage`."""
        return self._engine.storage

    def submit(self, request: Request) -> RequestHandle:
        """Queue a request. One of zero ``max_tokens`` has ended when this returns.

        Raises:
            QueueFull: as many wait as the queue holds.
            SchedulerClosed: the scheduler was shut down, or died.
            EngineError: it can never run: its prompt is empty or fills the context, it needs more KV than there is,
                or it has stop strings and no detokenizer.

        """
        ticket = self._ticket(request)
        if request.rules.max_tokens == 0:
            ticket.end("length", Finish("length", "max-tokens"))
        else:
            self._inbox.put(ticket)
        return ticket.handle

    def join(self, timeout: float | None = None) -> None:
        """Wait until every accepted request has ended.

        Raises:
            TimeoutError: some have not within ``timeout`` seconds.

        """
        if not self._inbox.join(timeout):
            raise TimeoutError(f"some requests have not ended within {timeout} s")

    def shutdown(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests and end the worker: at once, or with ``drain`` when the admitted ones have ended.

        Whatever does not run to its end, the queue too, ends with :class:`SchedulerClosed`. A later call may be
        stricter. Called from the worker's thread (a callback), it does not wait.

        Raises:
            TimeoutError: the worker has not ended within ``timeout`` seconds; it will.

        """
        self._inbox.close(Mode.DRAINING if drain else Mode.STOPPING)
        if current_thread() is self._thread:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the scheduler has not ended within {timeout} s")
        _await_exit(self._thread)
        atexit.unregister(self._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.join()
        self.shutdown(drain=kind is None)

    def _leave(self) -> None:
        """At the end of the process: MLX must not be at work any more."""
        self.shutdown(drain=False)

    def _ticket(self, request: Request) -> Ticket:
        prompt, config = request.prompt, self._config
        budget = token_budget(len(prompt), request.rules)
        cached = config.prompt_cache_bytes > 0 and request.cache_key is not None
        kept = self._engine.whole(len(prompt) - 1 if request.boundary is None else request.boundary) if cached else None
        spec = SequenceSpec(prompt, request.sampling, config.chunk, budget, None if request.boundary is None else kept)
        PrefillPlan(len(prompt), boundary=request.boundary)  # refuses a boundary outside of the prompt
        self._engine.check_ids((*prompt, *request.sampling.forced))
        self._check_room(len(prompt), budget)
        ticket = Ticket(
            rank=rank(request.priority, self._worker.policy.tick, next(self._serial), config.priority_ticks),
            target=self._engine.make_plan(spec).tail.start,
            steps_left=budget,
            request=request,
            handle=RequestHandle(lambda: self._inbox.cancel(ticket)),
            spec=spec,
            progress=RowProgress(request.rules, len(prompt), request.detokenizer),
            submitted=time.perf_counter(),
            storage=self._engine.storage,
            boundary=kept,
        )
        return ticket

    def _check_room(self, prompt: int, budget: int) -> None:
        needed = blocks_for(prompt + budget)
        if self._blocks is not None and needed > self._blocks:
            asked = f"a prompt of {prompt} tokens and up to {budget} new ones need {needed * BLOCK_TOKENS} tokens of KV"
            remedy = "shorten the prompt, lower max_tokens or give more KV"
            raise EngineError(f"{asked}, of {self._blocks * BLOCK_TOKENS} in all; {remedy}")


def _await_exit(thread: Thread) -> None:
    """Wait until the system's thread is gone, too, where the system shows its threads (Linux).

    When it goes it frees the functions that MLX compiled in it, for which it takes the interpreter's lock. Python's
    ``join`` does not wait for that, and asking for it while the interpreter ends (before 3.13) aborts the process.
    """
    shown = Path(f"/proc/self/task/{thread.native_id}")
    until = time.monotonic() + _EXIT_S
    while shown.exists() and time.monotonic() < until:
        time.sleep(0.001)
