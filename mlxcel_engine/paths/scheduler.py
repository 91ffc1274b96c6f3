"""``dense``, ``paged``, ``cache-miss``, ``cache-hit``, ``batch-N``: our scheduler, driven as a server drives it.

The paths of the invariant mode alone are put together in ``invariant.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from mlxcel_engine.engine import EngineConfig, StopRules, supports_paged_decode
from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS, blocks_for
from mlxcel_engine.paths.base import CannotShowError, DecodePath, PathRequest, PathRun, TokenStep, TokenSteps
from mlxcel_engine.paths.evidence import mlx_lm_evidence, observed_evidence
from mlxcel_engine.paths.forward_log import ForwardLog, record_forwards
from mlxcel_engine.paths.neighbours import Load, Neighbour, make_neighbours, too_narrow
from mlxcel_engine.paths.watched_engine import WatchedEngine
from mlxcel_engine.scheduler import BatchScheduler, Request, SchedulerConfig

if TYPE_CHECKING:
    from mlxcel_engine.engine.config import Storage
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.records.evidence import Evidence
    from mlxcel_engine.scheduler import RequestHandle, RequestResult, TokenEvent

Cache = Literal["off", "cold", "primed"]
Crowd = Literal["joins", "waits", "cancelled", "evicts"]
"""Neighbours join a running request, or it joins them, or they are cancelled, or one of them takes its room."""
_CACHE_BYTES: Final = 2**33  # no request is to be refused


class SchedulerPath:
    """One request through a fresh ``BatchScheduler``, over one storage, with one state of the prompt cache.

    ``width`` rows are in the batch at most: the request and its neighbours, who behave as ``crowd`` says. Of the prompt
    ``history`` tokens are primed; None is what a conversation would share with its next turn.
    """

    def __init__(
        self,
        name: str,
        storage: Storage = "dense",
        cache: Cache = "off",
        width: int = 1,
        crowd: Crowd = "joins",
        history: int | None = None,
    ) -> None:
        self.name = name
        self.storage = storage
        self.cache = cache
        self.width = width
        self.crowd = crowd
        self.history = history

    @property
    def variants(self) -> dict[str, DecodePath]:
        """One setting changed, towards ``dense``."""
        found: dict[str, DecodePath] = {}
        if self.storage != "dense":
            found["storage dense"] = dense()
        for width in range(self.width - 1, 1, -1):
            found[f"batch width {width}"] = batch(width)
        if self.width > 1:
            found["batch width 1"] = dense()
        if self.cache == "primed":
            found["prompt cache cold"] = cache_miss()
        if self.cache != "off":
            found["prompt cache off"] = dense()
        return found

    def unavailable(self, loaded: LoadedModel) -> str | None:
        """Why the family cannot page, where the path needs it."""
        support = supports_paged_decode(loaded.model)
        return support.reason if self.storage == "paged" and not support.ok else None

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """See :meth:`DecodePath.run`."""
        run = _Run(self, loaded, request)
        return PathRun(run.steps(), run.evidence, self._broken_claim)

    def _broken_claim(self, evidence: Evidence) -> str | None:
        if not evidence.forwarded:
            return None
        own = evidence.storage.startswith("mlx-lm ") and self.storage == "dense"
        if not own and (evidence.storage != self.storage or not evidence.attention_calls):
            return f"not over {self.storage} KV: {evidence.storage}, attention calls={evidence.attention_calls}"
        if self.history is not None and evidence.adopted != self.history - self.history % evidence.chunk:
            return f"it adopted {evidence.adopted} tokens, not the whole chunks of {self.history}"
        if self.history is None and self.cache == "primed" and not evidence.adopted:
            return "the prompt cache was hit for 0 tokens"
        if self.cache != "primed" and evidence.adopted:
            return f"it adopted {evidence.adopted} tokens from a prompt cache that should be {self.cache}"
        return too_narrow(evidence, self.width) if self.width > 1 else None


def dense() -> SchedulerPath:
    """The scheduler at B=1, prompt cache off."""
    return SchedulerPath("dense")


def paged() -> SchedulerPath:
    """The same over paged KV."""
    return SchedulerPath("paged", storage="paged")


def cache_miss() -> SchedulerPath:
    """``dense`` with the prompt cache on, and nothing in it."""
    return SchedulerPath("cache-miss", cache="cold")


def cache_hit() -> SchedulerPath:
    """``dense`` with the prompt cache on, after a request with the same history stored it."""
    return SchedulerPath("cache-hit", cache="primed")


def batch(width: int) -> SchedulerPath:
    """``dense`` with ``width`` - 1 neighbours."""
    return SchedulerPath(f"batch-{width}", width=width)


class _Run:
    """One run of a path: its scheduler, and what was seen of it."""

    def __init__(self, path: SchedulerPath, loaded: LoadedModel, request: PathRequest) -> None:
        self._path = path
        self._loaded = loaded
        self._request = request
        self._log = ForwardLog(len(request.prompt.ids), ahead=-1)
        self._engine = WatchedEngine(loaded.model, EngineConfig(path.storage, invariant=request.invariant or False))
        self._load = Load(self._neighbours())
        self._beside: list[RequestHandle] = []
        self._result: RequestResult | None = None

    def steps(self) -> TokenSteps:
        """Prime the cache where the path says so, then run the request."""
        path, request = self._path, self._request
        if not request.max_tokens:
            return
        self._check_history()
        limits = SchedulerConfig(
            max_batch=path.width,
            chunk=request.prefill_chunk,
            prompt_cache_bytes=0 if path.cache == "off" else _CACHE_BYTES,
            kv_tokens=self._least_room if path.crowd == "evicts" else None,
        )
        scheduler = BatchScheduler(self._engine, limits)
        try:
            if path.cache == "primed":
                scheduler.submit(self._priming()).result()
            if path.crowd == "waits":
                self._gather(scheduler)
            self._engine.watch(self._log)
            with record_forwards(self._loaded.model, self._log, request.probe):
                try:
                    yield from self._own_steps(scheduler)
                finally:  # the worker must be still before the model's layers are let go
                    scheduler.shutdown(drain=False)
        finally:
            scheduler.shutdown(drain=False)
        if path.crowd == "evicts" and self._result is not None and not self._result.preemptions:
            raise CannotShowError("the answer is too short to be moved out")
        if path.width > 1 and not self._log.shared:
            raise CannotShowError("the request ended before a neighbour had joined")

    def evidence(self) -> Evidence:
        """What was seen of the request."""
        cached = self._path.cache != "off"
        notes = [str(self._load)] if self._path.width > 1 else []
        if not self._engine.support.batched:
            return mlx_lm_evidence(self._log, self._request, self._engine.support.reason, *notes, prompt_cache=cached)
        calls = self._result.counters.attention_calls if self._result is not None else 0
        return observed_evidence(self._log, self._request, self._engine.storage, calls, notes, prompt_cache=cached)

    def _own_steps(self, scheduler: BatchScheduler) -> TokenSteps:
        def heard(event: TokenEvent) -> None:  # in the worker's thread: neighbours join at the same step each time
            if event.finish is not None:
                self._load.end()
                return
            self._join(scheduler, event.index + 1)

        request = self._request
        handle = scheduler.submit(
            Request(
                prompt=request.prompt.ids,
                rules=StopRules(self._loaded.eos_ids, request.max_tokens),
                sampling=request.sampling,
                detokenizer=self._loaded.tokenizer.detokenizer,
                boundary=self._boundary,
                logprobs=True,
                on_token=heard,
            )
        )
        for event in handle:
            assert event.logprobs is not None  # asked for
            finish = event.finish.reason if event.finish is not None else None
            yield TokenStep(event.token, event.logprobs, event.text, finish)
        self._result = handle.result()

    @property
    def _boundary(self) -> int:
        """How much of the prompt is history: what a conversation would share with its next turn, or all but one."""
        prompt = self._request.prompt
        if self._path.history is not None:
            return self._path.history
        return len(prompt.ids) - 1 if prompt.boundary is None else prompt.boundary

    def _priming(self) -> Request:
        """A request with the same history and another token after it."""
        history, ids = self._boundary, self._request.prompt.ids
        other = (ids[history] + 1) % self._loaded.record.vocab_size
        return Request((*ids[:history], other), StopRules(frozenset(), 1), boundary=history)

    def _check_history(self) -> None:
        """See that there is a prefix to adopt, where the path adopts one."""
        if self._path.cache != "primed":
            return
        tokens = len(self._request.prompt.ids)
        if tokens == 1:
            raise CannotShowError("a prompt of one token has no prefix to adopt")
        if self._boundary >= tokens:
            raise CannotShowError(f"a prompt of {tokens} tokens has no history of {self._boundary}")
        if self._path.history is None and not self._engine.whole(self._boundary):
            raise CannotShowError("its history is shorter than a chunk of the invariant mode")

    @property
    def _least_room(self) -> int:
        """Tokens of KV that hold the request and nobody beside it, in whole blocks."""
        return BLOCK_TOKENS * blocks_for(len(self._request.prompt.ids) + self._request.max_tokens)

    def _neighbours(self) -> tuple[Neighbour, ...]:
        request, path = self._request, self._path
        if path.crowd == "evicts":
            return (Neighbour(request.prompt.ids[:1], 1, request.max_tokens, request.sampling),)
        context = self._loaded.record.context_length
        found = make_neighbours(request.prompt.ids, request.sampling, request.max_tokens, path.width - 1, context)
        if path.crowd == "waits":  # they are there before it, and still there at its end
            stay = 2 * request.max_tokens + len(found)
            return tuple(replace(neighbour, joins=0, tokens=neighbour.tokens + stay) for neighbour in found)
        return found

    def _gather(self, scheduler: BatchScheduler) -> None:
        """Let all neighbours join, and wait until each has a token."""
        self._join(scheduler, 0)
        for handle in self._beside:
            next(iter(handle))

    def _join(self, scheduler: BatchScheduler, tokens: int) -> None:
        """Submit the neighbours whose turn it is when the request has ``tokens`` tokens."""
        for neighbour in self._load.joining(tokens):
            self._beside.append(scheduler.submit(self._request_of(neighbour, len(self._beside))))

    def _request_of(self, neighbour: Neighbour, number: int) -> Request:
        crowd = self._path.crowd

        def heard(event: TokenEvent) -> None:
            if crowd == "cancelled" and event.index == neighbour.tokens // 2:
                self._beside[number].cancel()
                self._load.leave()
            elif event.finish is not None:
                self._load.leave()

        rules = StopRules(frozenset(), neighbour.tokens)
        priority = 1 if crowd == "evicts" else 0
        return Request(neighbour.prompt, rules, neighbour.sampling, cache_key=None, priority=priority, on_token=heard)
