"""``engine``: our :class:`~mlxcel_engine.engine.Engine` without a scheduler."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.bench.timing import StreamToken
from mlxcel_engine.engine import (
    Engine,
    EngineConfig,
    FixedShapes,
    RowProgress,
    SequenceId,
    SequenceSpec,
    StepBatch,
    StopRules,
    generate,
    supports_paged_decode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.nn as nn

    from mlxcel_engine.bench.loops.base import LoopSettings, Prompts, StreamTokens
    from mlxcel_engine.loader.load import LoadedModel


class EngineLoop:
    """One engine for all requests; storage ``auto`` is dense. ``shapes`` are those of the invariant mode."""

    chooses_storage = True
    caches_prompts = False

    def __init__(self, loaded: LoadedModel, shapes: FixedShapes | None = None) -> None:
        self.name = "engine" if shapes is None else "engine-invariant"
        self._loaded = loaded
        self._shapes = shapes

    def unavailable(self, settings: LoopSettings) -> str | None:
        """See :meth:`DecodeLoop.unavailable`."""
        return unavailable_storage(self._loaded.model, settings)

    @contextmanager
    def open(self, settings: LoopSettings) -> Iterator[EngineSession]:
        """See :meth:`DecodeLoop.open`."""
        from mlx_lm.generate import wired_limit

        config = engine_config(settings, self._shapes)
        with wired_limit(self._loaded.model, [mx.default_stream(mx.default_device())]):
            yield EngineSession(self._loaded, Engine(self._loaded.model, config), settings)


class EngineSession:
    """Implements :class:`Session`."""

    adopted_tokens = 0

    def __init__(self, loaded: LoadedModel, engine: Engine, settings: LoopSettings) -> None:
        self._loaded, self._engine, self._settings = loaded, engine, settings
        self.storage = engine.storage
        self.chunk = prefill_chunk(engine, settings)

    @property
    def attention_calls(self) -> int | None:
        """See :attr:`Session.attention_calls`."""
        return paged_calls(self._engine)

    def run(self, prompts: Prompts, max_tokens: int) -> StreamTokens:
        """See :meth:`Session.run`."""
        rules = StopRules(self._settings.eos_ids, max_tokens)
        specs = [SequenceSpec(prompt, chunk=self._settings.chunk, reserve=max_tokens) for prompt in prompts]
        if len(specs) > 1:
            yield from self._run_rows(specs, rules)
            return
        detokenizer = self._loaded.tokenizer.detokenizer
        for step in generate(self._engine, specs[0], rules, detokenizer, self._settings.tell_prefill):
            yield StreamToken(0, step.token, step.finish_reason)

    def _run_rows(self, specs: list[SequenceSpec], rules: StopRules) -> StreamTokens:
        """Prefill every row, then step all together; from the second token on a step is queued before one is read."""
        rows: dict[SequenceId, int] = {}
        progress = [RowProgress(rules, len(spec.prompt), self._loaded.tokenizer.detokenizer) for spec in specs]
        try:
            self._prefill(specs, rows)
            pending = self._engine.submit(StepBatch(tuple(rows)))
            for step in range(1, rules.max_tokens + 1):
                ahead = self._engine.submit(StepBatch(tuple(rows))) if 1 < step < rules.max_tokens else None
                output = self._engine.collect(pending)
                if output.errors:
                    raise output.errors[0].error
                for row in output.rows:
                    if row.id in rows:  # else it ended while this step was queued
                        index = rows[row.id]
                        finish = progress[index].advance(row.token).finish
                        if finish is not None:
                            self._engine.close(row.id)
                            del rows[row.id]
                        yield StreamToken(index, row.token, finish.reason if finish is not None else None)
                if step == rules.max_tokens or not rows:
                    return
                pending = ahead or self._engine.submit(StepBatch(tuple(rows)))
        finally:
            for sequence in rows:
                self._engine.close(sequence)

    def _prefill(self, specs: list[SequenceSpec], rows: dict[SequenceId, int]) -> None:
        through = 0
        for index, spec in enumerate(specs):
            sequence = self._engine.open(spec)
            rows[sequence] = index
            for piece in self._engine.plan(sequence).pieces:
                self._engine.prefill(sequence, piece)
                self._settings.tell_prefill(through + piece.stop)
            through += len(spec.prompt)


def unavailable_storage(model: nn.Module, settings: LoopSettings) -> str | None:
    """Why an engine cannot have the storage that is asked for, or None when it can."""
    support = supports_paged_decode(model)
    return None if support.ok or settings.storage != "paged" else f"no paged KV for this family: {support.reason}"


def engine_config(settings: LoopSettings, shapes: FixedShapes | None) -> EngineConfig:
    """How the engine of a loop is built."""
    return EngineConfig("paged" if settings.storage == "paged" else "dense", invariant=shapes or False)


def prefill_chunk(engine: Engine, settings: LoopSettings) -> int:
    """Prompt tokens that go through the model at once: as asked for, or the invariant mode's."""
    return settings.chunk if engine.shapes is None else engine.shapes.chunk


def paged_calls(engine: Engine) -> int | None:
    """Attention calls into paged KV so far: 0 over dense KV, None where a family keeps ``mlx-lm``'s caches."""
    if not engine.support.batched:
        return None
    return engine.counters.attention_calls if engine.storage == "paged" else 0
