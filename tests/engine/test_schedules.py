"""Random schedules on one engine: whatever joins, leaves, fails or moves, every row is what it is alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxcel_engine.engine import DetachedSequence, Engine, EngineConfig, SequenceId, SequenceSpec, StepBatch
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.blocks import OutOfBlocksError, blocks_for
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.engine.kv.store import DetachedKv
from mlxcel_engine.engine.sampling.row import UNWIND_LIMIT
from mlxcel_engine.engine.types import RowOutput
from mlxcel_engine.errors import EngineError
from tests.conformance.traces import TOLERANCE, LazyTrace, prompt, solo_steps
from tests.tiny import tiny_model

MODELS = ("llama", "qwen3")
STEPS = 40  # of a row at most
LENGTHS = (1, 2, 3, 15, 16, 17, 18, 32, 33, 47, 50)
STEM = prompt(50, seed=1)
STEMS = (STEM, (*STEM[:10], *prompt(40, seed=2)), (*STEM[:20], *prompt(30, seed=3)))  # a prefix in common
SUFFIXES = ((1,), (2, 3, 4), STEM[:17])  # behind a kept prefix, generated tokens included
LONGEST = 80  # prompt
STORAGES: tuple[Storage, ...] = ("dense", "paged")
POOLS = (5, 7, 10, 16)  # blocks; five rows of up to 90 tokens fill all of them
ROWS, KEPT = 5, 3


@cache
def model_of(name: str) -> nn.Module:
    return tiny_model(name)


@cache
def alone(name: str, ids: tuple[int, ...]) -> LazyTrace:
    """The trace of a prompt under ``generate_step``; one for each."""
    return LazyTrace(solo_steps(model_of(name), ids, STEPS, chunk=16))


@contextmanager
def failing(model: nn.Module) -> Iterator[None]:
    """Let the last layer's attention raise: the layers before it have stored the new keys by then."""
    layer = model.layers[-1]
    attention = layer.self_attn
    layer.self_attn = lambda *_: 1 / 0
    try:
        yield
    finally:
        layer.self_attn = attention


@dataclass
class Row:
    """``held`` tokens have KV, ``done`` tokens were drawn, ``memory`` of them can be taken back."""

    prompt: tuple[int, ...]
    trace: LazyTrace = field(repr=False)
    held: int
    done: int = 0
    memory: int = 0

    @property
    def ready(self) -> bool:
        return self.held >= len(self.prompt) - 1 and self.done < STEPS

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose KV is held."""
        return (*self.prompt, *self.trace.tokens(self.done))[: self.held]

    def check(self, output: RowOutput) -> None:
        """Compare the next draw with the run alone."""
        token, logprobs = self.trace[self.done]
        assert output.token == token
        difference = np.abs(np.array(output.logprobs) - logprobs).max()
        assert difference <= TOLERANCE
        self.done, self.held, self.memory = self.done + 1, self.held + 1, min(self.memory + 1, UNWIND_LIMIT)


class Schedule(RuleBasedStateMachine):
    """An engine beside what its rows should be."""

    @initialize(
        name=st.sampled_from(MODELS),
        config=st.sampled_from(
            [
                *(EngineConfig(storage, exact=how) for storage in STORAGES for how in (False, True)),
                *(EngineConfig("paged", blocks, exact=False) for blocks in POOLS),
            ]
        ),
    )
    def begin(self, name: str, config: EngineConfig) -> None:
        self.name, self.config = name, config
        self.engine = Engine(model_of(name), config)
        self.rows: dict[SequenceId, Row] = {}
        self.kept: list[tuple[DetachedKv, tuple[int, ...]]] = []
        self.out: list[tuple[DetachedSequence, Row]] = []

    def one(self, data: st.DataObject, ready: bool | None = None, held: bool = False) -> SequenceId:
        found = [i for i, row in self.rows.items() if (ready is None or row.ready == ready) and row.held >= held]
        return data.draw(st.sampled_from(found))

    @precondition(lambda self: len(self.rows) + len(self.out) < ROWS)
    @rule(
        stem=st.sampled_from(STEMS),
        length=st.sampled_from(LENGTHS),
        chunk=st.sampled_from((5, 16, 64)),
        reserve=st.sampled_from((0, 8, 256)),
        waits=st.sampled_from((False, False, True)),
        data=st.data(),
    )
    def joins(
        self, stem: tuple[int, ...], length: int, chunk: int, reserve: int, waits: bool, data: st.DataObject
    ) -> None:
        ids = stem[:length]
        prefix, tokens = data.draw(st.sampled_from([(None, ()), *self.kept]))
        if prefix is not None:
            suffix = data.draw(st.sampled_from(SUFFIXES))
            ids = (*tokens, *suffix)[: max(len(tokens) + 1, LONGEST)]
        boundary = data.draw(st.sampled_from((None, 1, 16))) if len(ids) > 17 else None
        row = Row(ids, alone(self.name, ids), len(tokens))
        try:
            sequence = self.engine.open(SequenceSpec(ids, chunk=chunk, reserve=reserve, boundary=boundary), prefix)
        except OutOfBlocksError:
            assert self.config.blocks is not None
            return
        self.rows[sequence] = row
        if not waits:
            self.prefill(sequence)

    @precondition(lambda self: any(not row.ready and not row.done for row in self.rows.values()))
    @rule(data=st.data(), fails=st.booleans(), whole=st.booleans())
    def prefills(self, data: st.DataObject, fails: bool, whole: bool) -> None:
        found = [sequence for sequence, row in self.rows.items() if not row.ready and not row.done]
        sequence = data.draw(st.sampled_from(found))
        row = self.rows[sequence]
        pieces = [piece for piece in self.engine.plan(sequence).pieces if piece.start >= row.held]
        if fails and data.draw(st.integers(0, 3)) == 0:
            with failing(model_of(self.name)), pytest.raises((ZeroDivisionError, OutOfBlocksError)):
                self.engine.prefill(sequence, pieces[0])
        self.prefill(sequence, None if whole else 1)

    def prefill(self, sequence: SequenceId, most: int | None = None) -> None:
        """Forward the next pieces, ``most`` of them or all; a pool that is too full leaves the row where it is."""
        row = self.rows[sequence]
        for piece in [piece for piece in self.engine.plan(sequence).pieces if piece.start >= row.held][:most]:
            try:
                self.engine.prefill(sequence, piece)
            except OutOfBlocksError:
                assert self.config.blocks is not None
                return
            row.held = piece.stop

    @precondition(lambda self: any(row.ready for row in self.rows.values()))
    @rule(data=st.data(), times=st.integers(1, 12))
    def steps(self, data: st.DataObject, times: int) -> None:
        batch = self.batch(data)
        for _ in range(times):
            if not all(self.rows[i].ready for i in batch.rows):
                return
            try:
                output = self.engine.step(batch)
            except OutOfBlocksError:
                self.refused(batch)
                return
            self.check(batch, output.rows, self.rows)

    @precondition(lambda self: any(row.ready for row in self.rows.values()))
    @rule(data=st.data(), leaves=st.booleans())
    def steps_ahead(self, data: st.DataObject, leaves: bool) -> None:
        """Two steps are queued before the first is read; a row may have left by then."""
        batch = self.batch(data)
        if any(self.rows[i].done + 2 > STEPS for i in batch.rows):
            return
        pending, rows = [], dict(self.rows)
        for _ in range(2):
            try:
                pending.append(self.engine.submit(batch))
            except OutOfBlocksError:
                self.refused(batch)
        if leaves and len(pending) == 2:
            self.engine.close(batch.rows[0])
            del self.rows[batch.rows[0]]
        for step in pending:
            self.check(batch, self.engine.collect(step).rows, rows)

    @precondition(lambda self: any(row.ready for row in self.rows.values()))
    @rule(data=st.data())
    def step_fails(self, data: st.DataObject) -> None:
        with failing(model_of(self.name)), pytest.raises((ZeroDivisionError, OutOfBlocksError)):
            self.engine.step(self.batch(data))

    def batch(self, data: st.DataObject) -> StepBatch:
        ready = sorted(i for i, row in self.rows.items() if row.ready)
        return StepBatch(tuple(data.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True))))

    def check(self, batch: StepBatch, outputs: tuple[RowOutput, ...], rows: dict[SequenceId, Row]) -> None:
        assert [output.id for output in outputs] == list(batch.rows)
        for output in outputs:
            rows[output.id].check(output)

    def refused(self, batch: StepBatch) -> None:
        """A pool may be too full only if a block a row, new or copied, is not there."""
        assert self.config.blocks is not None
        assert isinstance(self.engine._kv, PagedKv)
        assert self.engine._kv._allocator.free < len(batch.rows)

    @precondition(lambda self: any(row.done for row in self.rows.values()))
    @rule(data=st.data())
    def unwinds(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from([i for i, row in self.rows.items() if row.done]))
        row = self.rows[sequence]
        with pytest.raises(EngineError, match="are remembered"):
            self.engine.unwind(sequence, row.memory + 1)
        back = data.draw(st.integers(0, row.memory))
        self.engine.unwind(sequence, back)
        row.done, row.held, row.memory = row.done - back, row.held - back, row.memory - back

    @precondition(lambda self: any(row.held for row in self.rows.values()) and len(self.kept) < KEPT)
    @rule(data=st.data())
    def keeps_a_prefix(self, data: st.DataObject) -> None:
        sequence = self.one(data, held=True)
        row = self.rows[sequence]
        tokens = data.draw(st.integers(1, row.held))
        self.kept.append((self.engine.snapshot(sequence, tokens), row.tokens[:tokens]))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def releases(self, data: st.DataObject) -> None:
        self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))[0].release()

    @precondition(lambda self: any(row.held for row in self.rows.values()))
    @rule(data=st.data())
    def moves_out(self, data: st.DataObject) -> None:
        sequence = self.one(data, held=True)
        self.out.append((self.engine.detach(sequence), self.rows.pop(sequence)))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def moves_in(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.out) - 1))
        detached, row = self.out[index]
        try:
            sequence = self.engine.resume(detached)
        except OutOfBlocksError:
            assert isinstance(self.engine._kv, PagedKv)
            assert self.engine._kv._allocator.free < blocks_for(row.held)
            return
        del self.out[index]
        self.rows[sequence] = row

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        self.close(self.one(data))

    def close(self, sequence: SequenceId) -> None:
        assert self.engine.close(sequence).forwarded == self.rows.pop(sequence).held

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert set(self.engine._open.states) == set(self.rows)
        assert all(self.engine._kv.length(sequence) == row.held for sequence, row in self.rows.items())
        if isinstance(self.engine._kv, PagedKv):
            self.engine._kv.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for sequence in list(self.rows):
            self.close(sequence)
        for kept, _ in self.kept:
            kept.release()
        store = self.engine._kv
        if isinstance(store, PagedKv):
            store.check_integrity()
            assert (store._allocator.free, store._allocator._claims) == (store._allocator.total, [])
        else:
            assert isinstance(store, DenseKv)
            assert store._slabs == {}


Schedule.TestCase.settings = settings(max_examples=130, stateful_step_count=50, suppress_health_check=list(HealthCheck))
TestSchedule = Schedule.TestCase
