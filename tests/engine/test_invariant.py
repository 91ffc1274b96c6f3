"""Fixed shapes in the engine: what goes through the model, what is refused, and what a step draws from."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.llama import Model, ModelArgs

from mlxcel_engine.engine import (
    Engine,
    EngineConfig,
    FixedShapes,
    SequenceId,
    SequenceSpec,
    StepBatch,
    StopRules,
    generate,
    shapes,
)
from mlxcel_engine.engine.config import Storage
from mlxcel_engine.engine.shapes import LARGEST_WIDTH, PLACE_DEPENDENT, SHAPES, resolve_shapes
from mlxcel_engine.errors import EngineError
from mlxcel_engine.preload import PRELOAD
from tests.conformance.traces import prompt
from tests.tiny import tiny_config, tiny_model

CONFIG = EngineConfig(invariant=FixedShapes(4, 16))
LENGTHS = (3, 40, 16, 40, 1, 33, 17)  # more rows than a forward has
Trace = list[tuple[int, np.ndarray]]


class Shapes:
    """A model that tells the shapes of the inputs that it gets."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[tuple[int, ...]] = []
        self._model: Any = model

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        self.seen.append(inputs.shape)
        return self._model(inputs, cache=cache)


def alone(engine: Engine, ids: tuple[int, ...], tokens: int) -> Trace:
    steps = generate(engine, SequenceSpec(ids), StopRules(frozenset(), tokens))
    return [(step.token, np.array(step.logprobs)) for step in steps]


def opened(engine: Engine, ids: tuple[int, ...]) -> SequenceId:
    row = engine.open(SequenceSpec(ids))
    for piece in engine.plan(row).pieces:
        engine.prefill(row, piece)
    return row


def stepped(engine: Engine, rows: list[SequenceId], traces: dict[SequenceId, Trace]) -> None:
    output = engine.step(StepBatch(tuple(rows)))
    assert [row.id for row in output.rows] == rows
    for row in output.rows:
        traces.setdefault(row.id, []).append((row.token, np.array(row.logprobs)))


def same(one: Trace, two: Trace) -> bool:
    pairs = zip(one, two, strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


@pytest.mark.parametrize("storage", ["dense", "paged"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral"])
def test_rows_that_join_one_by_one_are_bitwise_what_they_are_alone(name: str, storage: Storage) -> None:
    engine = Engine(tiny_model(name), EngineConfig(storage, invariant=FixedShapes(4, 16)))
    rows: list[SequenceId] = []
    traces: dict[SequenceId, Trace] = {}
    for length in LENGTHS:
        rows.insert(len(rows) // 2, opened(engine, prompt(length)))  # a row that draws its first token amid others
        stepped(engine, rows, traces)
    for _ in range(6):
        stepped(engine, rows, traces)
    for row in rows:
        ids = engine._open.get(row).spec.prompt
        assert same(traces[row], alone(Engine(engine.model, CONFIG), ids, len(traces[row])))


def test_every_decode_forward_has_the_width_and_every_piece_begins_at_a_chunk() -> None:
    engine = Engine(tiny_model("llama"), CONFIG)
    seen = Shapes(engine.model)
    engine._model = seen
    rows = [opened(engine, prompt(length)) for length in LENGTHS]
    pieces = [str(engine.plan(row)) for row in rows]
    assert pieces[:3] == ["[0,3)", "[0,16)+[16,32)+[32,40)", "[0,16)"]
    assert seen.seen[:5] == [(1, 3), (1, 16), (1, 16), (1, 8), (1, 16)]
    seen.seen.clear()
    engine.step(StepBatch(tuple(rows)))  # the first tokens come from the prompts' last pieces
    assert seen.seen == []
    engine.step(StepBatch(tuple(rows)))
    assert seen.seen == [(4, 1), (4, 1)]
    assert engine.held(rows[0]) == 4


@pytest.mark.parametrize("exact", [True, False])
def test_quantized_products_on_a_cpu_need_no_padding(exact: bool) -> None:
    config = EngineConfig(exact=exact, invariant=CONFIG.invariant)
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict({**tiny_config("llama"), "intermediate_size": 64}))
    nn.quantize(model, group_size=32, bits=4)
    engine = Engine(model, config)
    seen = Shapes(model)
    engine._model = seen
    rows: list[SequenceId] = []
    traces: dict[SequenceId, Trace] = {}
    for length in LENGTHS:
        rows.append(opened(engine, prompt(length)))
        stepped(engine, rows, traces)
    assert {shape[0] for shape in seen.seen if shape[1] == 1} == {1, 2, 3, 4}
    for row in rows:
        ids = engine._open.get(row).spec.prompt
        assert same(traces[row], alone(Engine(model, config), ids, len(traces[row])))


def test_padding_is_neither_stored_nor_counted() -> None:
    engine = Engine(tiny_model("llama"), EngineConfig("paged", 4, invariant=FixedShapes(4, 16)))
    row = opened(engine, prompt(17))
    for _ in range(3):
        engine.step(StepBatch((row,)))
    assert (engine.held(row), engine.kv_usage.used) == (19, 2)
    assert engine.counters.slices == 3 * (2 + 2)  # layers times forwards of the one row


def test_the_first_step_can_be_taken_back() -> None:
    engine = Engine(tiny_model("llama"), CONFIG)
    row = opened(engine, prompt(20))
    first: dict[SequenceId, Trace] = {}
    again: dict[SequenceId, Trace] = {}
    for _ in range(3):
        stepped(engine, [row], first)
    engine.unwind(row, 3)
    assert engine.held(row) == 20
    for _ in range(3):
        stepped(engine, [row], again)
    assert same(first[row], again[row])


def test_a_sequence_can_be_moved_out_before_its_first_token() -> None:
    engine = Engine(tiny_model("llama"), CONFIG)
    row = engine.resume(engine.detach(opened(engine, prompt(20))))
    traces: dict[SequenceId, Trace] = {}
    for _ in range(3):
        stepped(engine, [row], traces)
    assert same(traces[row], alone(engine, prompt(20), 3))


def test_what_would_change_a_shape_is_refused() -> None:
    engine = Engine(tiny_model("llama"), CONFIG)
    row = opened(engine, prompt(40))
    with pytest.raises(EngineError, match="a prefix of 17 tokens is not a multiple of the invariant chunk 16"):
        engine.open(SequenceSpec(prompt(40)), engine.snapshot(row, 17))
    with pytest.raises(EngineError, match="a boundary at 20 tokens is not a multiple"):
        engine.open(SequenceSpec(prompt(40), boundary=20))
    with pytest.raises(EngineError, match="recomputes no sequence"):
        engine.detach(row, keep_kv=False)
    assert engine.open_sequences == 1
    detached = engine.detach(row)
    with pytest.raises(EngineError, match="recomputes no sequence"):
        engine.recompute(detached, prompt(40))
    engine.close(engine.resume(detached))


@pytest.mark.parametrize(("width", "chunk"), [(0, 16), (65, 16), (4, 0)])
def test_shapes_that_are_none_are_refused(width: int, chunk: int) -> None:
    with pytest.raises(EngineError, match="invariant"):
        FixedShapes(width, chunk)


@pytest.mark.parametrize(
    ("blas", "deterministic", "refused"), [("mkl", False, True), ("mkl", True, False), ("openblas", False, False)]
)
def test_a_width_at_which_the_place_counts_is_refused(
    blas: str, deterministic: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "PRELOAD", replace(PRELOAD, blas=blas, deterministic=deterministic))
    for width in range(1, LARGEST_WIDTH + 1):
        asked = FixedShapes(width, 16)
        if refused and width in PLACE_DEPENDENT:
            with pytest.raises(EngineError, match=f"width of {width}: MKL .* give 1 to 4, 8"):
                resolve_shapes(asked, "cpu")
        else:
            assert resolve_shapes(asked, "cpu") == asked
    assert resolve_shapes(FixedShapes(6, 16), "gpu") == FixedShapes(6, 16)


PLACES = """
import mlxcel_engine
import mlx.core as mx
from mlxcel_engine.engine.shapes import LARGEST_WIDTH
mx.set_default_device(mx.cpu)
row = {width: mx.random.normal((1, width), key=mx.random.key(1)) for width in (48, 576, 1536)}
for rows in range(1, LARGEST_WIDTH + 1):
    for outputs, width in ((64, 48), (576, 576), (576, 1536)):
        matrix = mx.random.normal((outputs, width), key=mx.random.key(2))
        product = mx.repeat(row[width], rows, axis=0) @ matrix.T
        if not mx.array_equal(product, mx.repeat(product[:1], rows, axis=0)):
            print(rows)
            break
"""


def test_rows_of_a_product_differ_by_their_place_at_the_refused_widths_alone() -> None:
    """In a process without the switch."""
    switched = ("MLXCEL_SDPA_DETERMINISTIC", "MKL_CBWR", "MLX_ENABLE_TF32")
    variables = {name: value for name, value in os.environ.items() if name not in switched}
    variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    run = subprocess.run([sys.executable, "-c", PLACES], env=variables, capture_output=True, text=True, check=True)
    found = {int(rows) for rows in run.stdout.split()}
    assert found <= PLACE_DEPENDENT
    if not found:
        pytest.skip("this library gives a row the same bits at every place on this processor: nothing need be refused")


def test_the_device_has_shapes_of_its_own_and_off_is_off() -> None:
    assert resolve_shapes(True, "cpu") == SHAPES["cpu"]
    assert resolve_shapes(None, "cpu") is None
    assert resolve_shapes(False, "gpu") is None
    assert Engine(tiny_model("llama")).shapes is None
    assert Engine(tiny_model("llama"), EngineConfig(invariant=True)).shapes == SHAPES["cpu"]
