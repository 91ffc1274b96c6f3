"""A process that serves for long: memory stays flat while rows come and go, and nothing is left in the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from mlxcel_engine.engine import (
    GREEDY,
    Engine,
    EngineConfig,
    ResolvedSampling,
    SamplingConfig,
    SequenceId,
    SequenceSpec,
    StepBatch,
    resolve_sampling,
)
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.engine.kv.store import DetachedKv
from mlxcel_engine.engine.sampling.row import UNWIND_LIMIT
from tests.conformance.configs.common import COMMON
from tests.leaks import GROWTH, LONG, allowed, grown, growth

VOCAB, LONGEST = 64, 96
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
}
PENALIZED = resolve_sampling(
    SamplingConfig(temperature=1.0, repeat_penalty=1.2, dry_multiplier=0.5, dry_sequence_breakers=(), seed=3)
)
MIROSTAT = resolve_sampling(SamplingConfig(temperature=1.0, mirostat=2, seed=5))


def smallest_model() -> llama.Model:
    model = llama.Model(llama.ModelArgs.from_dict({"model_type": "llama", **COMMON, **SIZES}))
    mx.eval(model.parameters())
    return model


@dataclass
class Traffic:
    """Random requests, up to four at a time, on one engine."""

    engine: Engine
    random: random.Random
    target: int = 1
    live: dict[SequenceId, list[int]] = field(default_factory=dict)  # tokens whose KV is held
    budget: dict[SequenceId, int] = field(default_factory=dict)  # steps to go
    fresh: dict[SequenceId, int] = field(default_factory=dict)  # steps since the last unwind or the prefill
    kept: list[tuple[DetachedKv, list[int]]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.random.random() < 0.02:
                self.target = self.random.randint(1, 4)
            while len(self.live) < self.target:
                self.join()
            self.now_and_then()
            batch = StepBatch(tuple(self.live))
            fed = {row: self.fed_next(row) for row in batch.rows}
            output = self.engine.step(batch)
            assert [row.id for row in output.rows] == list(batch.rows)
            for row in batch.rows:
                self.live[row].append(fed[row])
                self.budget[row] -= 1
                self.fresh[row] += 1
                if self.budget[row] == 0:
                    self.leave(row)

    def fed_next(self, row: SequenceId) -> int:
        token = self.engine._open.get(row).next_token
        assert token is not None
        value: Any = token.item()
        return int(value)

    def join(self) -> None:
        prompt, prefix = [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, LONGEST // 3))], None
        if self.kept and self.random.random() < 0.4:
            prefix, tokens = self.random.choice(self.kept)
            prompt = tokens + prompt
        spec = SequenceSpec(tuple(prompt), self.sampling(), chunk=16, reserve=self.random.choice((8, 64, 256)))
        row = self.engine.open(spec, prefix)
        for piece in self.engine.plan(row).pieces:
            self.engine.prefill(row, piece)
        self.live[row], self.budget[row], self.fresh[row] = prompt[:-1], self.random.randint(1, LONGEST // 2), 0
        self.count("joined" if prefix is None else "joined on a prefix")

    def sampling(self) -> ResolvedSampling:
        return self.random.choices((GREEDY, PENALIZED, MIROSTAT), (6, 1, 1))[0]

    def leave(self, row: SequenceId) -> None:
        assert self.engine.close(row).forwarded == len(self.live[row])
        del self.live[row], self.budget[row], self.fresh[row]

    def now_and_then(self) -> None:
        row = self.random.choice(list(self.live))
        chance = self.random.random()
        if chance < 0.02 and self.live[row]:
            tokens = self.random.randint(1, min(len(self.live[row]), LONGEST // 3))
            self.kept.append((self.engine.snapshot(row, tokens), self.live[row][:tokens]))
            self.count("kept")
            if len(self.kept) > 4:
                self.release(self.random.randrange(len(self.kept)))
        elif chance < 0.05 and self.fresh[row]:
            back = self.random.randint(1, min(self.fresh[row], UNWIND_LIMIT))
            self.engine.unwind(row, back)
            del self.live[row][-back:]
            self.fresh[row] = 0
            self.count("taken back")
        elif chance < 0.07 and self.live[row]:
            again = self.engine.resume(self.engine.detach(row))
            self.live[again], self.budget[again] = self.live.pop(row), self.budget.pop(row)
            self.fresh[again] = self.fresh.pop(row)
            self.count("moved out and in")

    def release(self, index: int) -> None:
        self.kept.pop(index)[0].release()

    def end(self) -> None:
        for row in list(self.live):
            self.engine.close(row)
        while self.kept:
            self.release(0)
        self.live.clear()

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


def serve(storage: Storage, steps: int, settled: int, leak: int) -> int:
    """Run traffic, check that nothing is left, and return by how many bytes memory grew once settled."""
    engine = Engine(smallest_model(), EngineConfig(storage=storage))
    traffic = Traffic(engine, random.Random(1))
    grew = growth(traffic.run, steps, settled, leak)
    assert min(traffic.done.values()) > steps // 200, traffic.done
    traffic.end()
    assert engine.open_sequences == 0
    store = engine._kv
    if isinstance(store, PagedKv):
        store.check_integrity()
        assert (store.held_bytes, store._tables, store._kept, store._allocator._claims) == (0, {}, [], [])
        assert store._allocator.total <= 256  # four rows of at most 96 + 256 tokens, and the kept prefixes
    else:
        assert isinstance(store, DenseKv)
        assert store._slabs == {}
    return grew


@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_memory_stays_flat_while_rows_come_and_go(storage: Storage) -> None:
    assert grown(__name__, storage, 4_500) < allowed(4_500)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_memory_stays_flat_over_20000_steps(storage: Storage) -> None:
    assert grown(__name__, storage, LONG) < GROWTH


def test_a_leak_is_seen() -> None:
    """Negative control: 10,000 bytes a step over 800 steps."""
    assert grown(__name__, "dense", 1_200, settled=400, leak=10_000) > GROWTH
