"""The engine's contract: what it refuses, what an error leaves behind, and that mlx-lm's own loops are unaffected."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from mlxcel_engine.engine import (
    Engine,
    Piece,
    SamplingConfig,
    SequenceId,
    SequenceSpec,
    StepBatch,
    StopRules,
    dispatch,
    generate,
    resolve_sampling,
)
from mlxcel_engine.engine import engine as engine_module
from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.errors import EngineError, RunError
from tests.tiny import VOCAB, tiny_model

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def opened(engine: Engine, prompt: tuple[int, ...] = PROMPT, **spec: Any) -> SequenceId:
    sequence = engine.open(SequenceSpec(prompt, **spec))
    for piece in engine.plan(sequence).pieces:
        engine.prefill(sequence, piece)
    return sequence


def solo(model: Any, steps: int, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=steps)]


def steps(engine: Engine, sequence: SequenceId, number: int) -> list[int]:
    return [engine.step(StepBatch((sequence,))).rows[0].token for _ in range(number)]


def test_what_cannot_be_done_is_refused_and_names_the_sequence() -> None:
    engine = Engine(tiny_model("llama"))
    with pytest.raises(EngineError, match="at least one prompt token"):
        SequenceSpec(())
    with pytest.raises(EngineError, match="no sequence twice"):
        StepBatch((SequenceId(1), SequenceId(1)))
    with pytest.raises(EngineError, match="at least one row"):
        StepBatch(())
    sequence = engine.open(SequenceSpec(PROMPT, chunk=4))
    with pytest.raises(EngineError, match=f"sequence {sequence}: 0 of 7 prompt tokens"):
        engine.step(StepBatch((sequence,)))
    for piece in (Piece(4, 7), Piece(0, 3), Piece(0, 8)):
        with pytest.raises(EngineError, match=f"sequence {sequence}: piece .* is not next"):
            engine.prefill(sequence, piece)
    engine.prefill(sequence, Piece(0, 4))
    with pytest.raises(EngineError, match="is not next"):
        engine.prefill(sequence, Piece(0, 4))
    engine.close(sequence)
    for call in (engine.plan, engine.close, lambda s: engine.step(StepBatch((s,)))):
        with pytest.raises(EngineError, match=f"sequence {sequence} is not open"):
            call(sequence)


def test_a_closed_sequence_tells_what_it_did_and_frees_its_storage() -> None:
    engine = Engine(tiny_model("llama"))
    sequence = opened(engine, chunk=3)
    steps(engine, sequence, 5)
    closed = engine.close(sequence)
    assert (closed.forwarded, str(closed.plan)) == (12, "[0,3)+[3,6)+[6,7)+[7,8)")
    assert isinstance(engine._kv, DenseKv)
    assert engine._kv._slabs == {}


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_closing_while_a_step_is_queued_disturbs_nobody(name: str) -> None:
    model = tiny_model(name)
    engine = Engine(model)
    gone, stays = opened(engine, (7, 7)), opened(engine)
    pending = engine.submit(StepBatch((gone, stays)))
    ahead = engine.submit(StepBatch((gone, stays)))
    engine.close(gone)
    tokens = [engine.collect(p).rows[1].token for p in (pending, ahead)]
    assert tokens + steps(engine, stays, 4) == solo(model, 6)


def test_sampling_that_fails_leaves_every_row_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    batch = StepBatch((opened(engine, (2, 7, 1, 8)), opened(engine)))
    seen = [engine.step(batch) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "sample_rows", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step(batch)
    seen += [engine.step(batch) for _ in range(3)]
    assert [output.rows[1].token for output in seen] == solo(model, 5)
    assert [output.rows[0].token for output in seen] == solo(model, 5, (2, 7, 1, 8))


def test_a_forward_that_fails_leaves_dense_rows_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    sequence = opened(engine)
    first = steps(engine, sequence, 2)
    with monkeypatch.context() as patch:
        patch.setattr(type(model.layers[2].mlp), "__call__", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step(StepBatch((sequence,)))
    assert first + steps(engine, sequence, 4) == solo(model, 6)


def test_a_forward_that_fails_half_way_ends_a_row_on_mlx_lms_caches_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("lfm2")
    engine = Engine(model)
    first, broken, last = opened(engine, (5, 5, 5)), opened(engine), opened(engine, (2, 7))
    batch = StepBatch((first, broken, last))
    calls: list[int] = []
    layer = type(model.layers[2])
    real = layer.__call__

    def failing_second(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        return 1 / 0 if len(calls) == 3 * 1 + 2 else real(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "__call__", failing_second)
        output = engine.step(batch)
    assert [row.id for row in output.rows] == [first, last]
    assert [row.id for row in output.errors] == [broken]
    assert "its forward failed (ZeroDivisionError" in str(output.errors[0].error)
    with pytest.raises(EngineError, match=f"sequence {broken}: a forward failed half-way"):
        engine.step(StepBatch((broken,)))
    engine.close(broken)
    tokens = [row.token for row in output.rows]
    assert [tokens[0], *steps(engine, first, 2)] == solo(model, 3, (5, 5, 5))
    assert [tokens[1], *steps(engine, last, 2)] == solo(model, 3, (2, 7))


def test_each_row_is_drawn_by_its_own_sampling_and_a_masked_row_is_an_error_of_its_own() -> None:
    engine = Engine(tiny_model("llama"))
    forced = [resolve_sampling(SamplingConfig(logit_bias={token: 1000.0})) for token in (11, 12, 13)]
    rows = tuple(opened(engine, sampling=sampling) for sampling in forced)
    assert [row.token for row in engine.step(StepBatch(rows[::-1])).rows] == [13, 12, 11]
    nothing = resolve_sampling(SamplingConfig(logit_bias=dict.fromkeys(range(VOCAB), float("-inf"))))
    masked = opened(engine, sampling=nothing)
    output = engine.step(StepBatch((rows[0], masked, rows[1])))
    assert [(row.id, row.token) for row in output.rows] == [(rows[0], 11), (rows[1], 12)]
    assert [row.id for row in output.errors] == [masked]
    assert f"sequence {masked}: every token is masked" in str(output.errors[0].error)


def test_attention_that_goes_around_the_view_is_an_error_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    rows = (opened(engine), opened(engine, (2, 7)))
    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "scaled_dot_product_attention", dispatch._attention)
    with pytest.raises(EngineError, match="layer 0 did not attend through its KV view"):
        engine.step(StepBatch(rows))


def test_altered_keys_are_an_error_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    sequence = opened(engine)
    module = sys.modules[type(model).__module__]

    def altering(q: mx.array, k: mx.array, v: mx.array, **settings: Any) -> mx.array:
        return dispatch.dispatch_attention(q, k * 1.0, v, **settings)

    monkeypatch.setattr(module, "scaled_dot_product_attention", altering)
    with pytest.raises(EngineError, match="alters keys"):
        engine.step(StepBatch((sequence,)))


def test_a_slab_grows_by_halves_and_a_long_prompt_gets_its_room_at_once() -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    prompt = tuple(int(i) for i in np.random.default_rng(0).integers(0, 300, 300))
    sequence = opened(engine, prompt, chunk=64, reserve=0)
    assert engine.counters.grown == 0
    tokens = steps(engine, sequence, 250)
    assert engine.counters.grown == 3  # once in each of the three layers
    assert tokens == solo(model, 250, prompt)


def test_zero_tokens_forward_nothing_and_an_abandoned_iteration_closes_its_sequence() -> None:
    engine = Engine(tiny_model("llama"))
    assert list(generate(engine, SequenceSpec(PROMPT), StopRules(frozenset(), 0))) == []
    assert engine.counters.attention_calls == 0
    iteration = generate(engine, SequenceSpec(PROMPT), StopRules(frozenset(), 5))
    next(iteration)
    assert engine.open_sequences == 1
    iteration.close()
    assert engine.open_sequences == 0


UNAFFECTED = """
import sys
import mlxcel_engine, mlx.core as mx, numpy as np
from mlx_lm.generate import generate_step
from tests.tiny import VOCAB, tiny_model
def run(model):
    steps = generate_step(mx.array([3, 1, 4, 1]), model, max_tokens=8)
    return b"".join(np.array(logprobs).tobytes() for _, logprobs in steps)
models = [tiny_model(name) for name in ("llama", "qwen3", "lfm2")]
before = [run(model) for model in models]
from mlxcel_engine.engine import Engine
from mlxcel_engine.engine import dispatch
for model, bits in zip(models, before):
    Engine(model)
    assert run(model) == bits
    assert dispatch._attention is not sys.modules[type(model).__module__].scaled_dot_product_attention
print("the same")
"""


def test_mlx_lms_own_loop_gives_the_same_bits_before_and_after_the_dispatch_is_installed() -> None:
    done = subprocess.run([sys.executable, "-c", UNAFFECTED], capture_output=True, text=True, check=True)
    assert done.stdout == "the same\n"


def test_a_row_whose_sampling_names_a_token_that_is_not_there_is_an_error_of_its_own() -> None:
    model = tiny_model("llama")
    engine = Engine(model)
    wrong = resolve_sampling(SamplingConfig(logit_bias={VOCAB: 1.0}))
    good, bad = opened(engine), opened(engine, sampling=wrong)
    output = engine.step(StepBatch((bad, good)))
    assert [row.id for row in output.rows] == [good]
    assert f"sequence {bad}: token {VOCAB} of the prompt or logit_bias is outside" in str(output.errors[0].error)
    assert [output.rows[0].token, *steps(engine, good, 3)] == solo(model, 4)
    with pytest.raises(RunError, match="outside the vocabulary"):
        engine.step(StepBatch((bad,)))
