"""Prefill attention in blocks of queries against MLX's attention over the whole square of scores."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.kv import causal
from mlxcel_engine.engine.kv.causal import attend_causal, query_blocks

SCALE = 0.3


def worst(before: int, tokens: int, heads: tuple[int, int], widths: tuple[int, int], seed: int) -> float:
    """The largest difference from MLX's attention; keys and values are slices of longer arrays, as a slab's are."""
    kv_heads, group = heads
    keys_of = mx.random.split(mx.random.key(seed), 3)
    total = before + tokens
    queries = mx.random.normal((1, kv_heads * group, tokens, widths[0]), key=keys_of[0])
    keys = mx.random.normal((1, kv_heads, total + 7, widths[0]), key=keys_of[1])[:, :, :total]
    values = mx.random.normal((1, kv_heads, total + 7, widths[1]), key=keys_of[2])[:, :, :total]
    found = attend_causal(queries, keys, values, SCALE, query_blocks(before, tokens))
    wanted = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask="causal")
    assert found.shape == wanted.shape
    return float(mx.abs(found - wanted).max())


@settings(max_examples=60)
@given(
    before=st.integers(0, 200),
    tokens=st.integers(1, 200),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    widths=st.tuples(st.sampled_from([4, 16]), st.sampled_from([4, 8])),
    seed=st.integers(0, 1000),
)
def test_blocks_of_queries_attend_as_mlx_does(
    before: int, tokens: int, heads: tuple[int, int], widths: tuple[int, int], seed: int
) -> None:
    assert worst(before, tokens, heads, widths, seed) <= 5e-6


@settings(max_examples=30)
@given(before=st.integers(0, 300), tokens=st.integers(1, 300))
def test_blocks_cover_the_piece_and_see_no_later_key(before: int, tokens: int) -> None:
    blocks = query_blocks(before, tokens)
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == tokens
    for block in blocks:
        seen = (block.mask == 0).sum(axis=1).tolist()
        assert seen == [before + query + 1 for query in range(block.start, block.stop)]


def test_a_mask_that_is_one_key_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: every query of the last block sees one key too few."""
    made = causal.query_blocks

    def short(before: int, tokens: int) -> list[causal.QueryBlock]:
        return [*made(before, tokens)[:-1], made(before - 1, tokens)[-1]]

    monkeypatch.setitem(globals(), "query_blocks", short)
    assert worst(10, 100, (2, 2), (16, 16), seed=0) > 1e-3
