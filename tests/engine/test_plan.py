"""The prefill plan: one partition of a prompt, that of ``mlx_lm.generate.generate_step``."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from inspect import signature
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step

from mlxcel_engine.engine.plan import DEFAULT_CHUNK, PrefillPlan
from mlxcel_engine.errors import EngineError

LENGTHS, CHUNKS = st.integers(1, 3000), st.integers(1, 3000)
QUICK = settings(max_examples=150)
EDGES = [(1, 1), (1, 8), (2, 1), (2, 8), (8, 8), (9, 8), (10, 8), (16, 8), (17, 8), (18, 8), (40, 8), (3, 8)]


def published(length: int, chunk: int) -> list[tuple[int, int]]:
    """The rule of ``generate_step``: the smaller of the step and what remains, until one token is left."""
    pieces, processed = [], 0
    while length - processed > 1:
        remaining = length - processed - 1
        count = min(chunk, remaining)
        pieces.append((processed, processed + count))
        processed += count
    return pieces


def pieces_of(plan: PrefillPlan) -> list[tuple[int, int]]:
    return [(piece.start, piece.stop) for piece in plan.pieces]


@QUICK
@given(LENGTHS, CHUNKS)
@example(1, 1)
@example(3000, 1)
@example(2049, 2048)
@example(2050, 2048)
def test_the_pieces_tile_all_but_the_last_token_in_order(length: int, chunk: int) -> None:
    plan = PrefillPlan(length, chunk)
    pieces = pieces_of(plan)

    assert [position for start, stop in pieces for position in range(start, stop)] == list(range(length - 1))
    assert all(0 < stop - start <= chunk for start, stop in pieces)
    assert all(left[1] == right[0] for left, right in pairwise(pieces))
    assert (plan.tail.start, plan.tail.stop) == (length - 1, length)


@QUICK
@given(LENGTHS, CHUNKS)
def test_the_partition_is_that_of_the_published_rule(length: int, chunk: int) -> None:
    assert pieces_of(PrefillPlan(length, chunk)) == published(length, chunk)
    assert PrefillPlan(length, chunk) == PrefillPlan(length, chunk)


@pytest.mark.parametrize(("length", "chunk"), EDGES)
def test_the_partition_is_what_generate_step_forwards(length: int, chunk: int) -> None:
    forwarded: list[tuple[int, int]] = []

    def forward(tokens: mx.array, cache: list[Any]) -> mx.array:
        start = forwarded[-1][1] if forwarded else 0
        forwarded.append((start, start + tokens.shape[1]))
        return mx.zeros((1, tokens.shape[1], 4))

    # An empty cache list: the stub keeps no state. The first token is drawn from the tail's own forward.
    model: Any = forward
    next(generate_step(mx.zeros(length, mx.int32), model, max_tokens=1, prompt_cache=[], prefill_step_size=chunk))
    plan = PrefillPlan(length, chunk)
    expected = [*pieces_of(plan), (plan.tail.start, plan.tail.stop)]

    assert forwarded[: len(expected)] == expected
    assert all(stop - start == 1 for start, stop in forwarded[len(expected) :]), "the rest is decoding"


def test_the_default_chunk_is_that_of_generate_step() -> None:
    theirs = signature(generate_step).parameters["prefill_step_size"].default

    assert DEFAULT_CHUNK == PrefillPlan(1).chunk == theirs


@pytest.mark.parametrize(
    ("length", "chunk", "text"),
    [
        (52, 45, "[0,45)+[45,51)+[51,52)"),
        (52, 51, "[0,51)+[51,52)"),
        (5, 2, "[0,2)+[2,4)+[4,5)"),
        (2, 2048, "[0,1)+[1,2)"),
        (1, 2048, "[0,1)"),
    ],
)
def test_a_plan_reads_as_its_partition(length: int, chunk: int, text: str) -> None:
    assert str(PrefillPlan(length, chunk)) == text


@pytest.mark.parametrize(("length", "chunk"), [(0, 8), (-1, 8), (8, 0), (8, -1), (0, 0)])
def test_a_length_or_a_chunk_below_one_is_refused(length: int, chunk: int) -> None:
    with pytest.raises(EngineError, match=str(min(length, chunk))):
        PrefillPlan(length, chunk)


def test_a_plan_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        PrefillPlan(8).length = 9  # type: ignore[misc]  # frozen: the type checker refuses it too
