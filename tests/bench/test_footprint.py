"""Bytes a decode step reads, against sizes worked out from the shapes; the probe's arithmetic."""

from __future__ import annotations

from itertools import count
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from mlxcel_engine.bench.footprint import measure_footprint, step_weight_bytes
from mlxcel_engine.bench.probe import last_level_cache, probe_bandwidth
from mlxcel_engine.errors import CheckpointError
from tests.tiny import parameters, tiny_config, tiny_model


def test_keys_and_values_by_the_shapes() -> None:
    config = tiny_config("llama")
    width = config["hidden_size"] // config["num_attention_heads"]
    a_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width * 4
    footprint = measure_footprint(tiny_model("llama"))
    assert [footprint.kv_bytes(tokens) for tokens in (1, 100, 1000)] == [a_token, 100 * a_token, 1000 * a_token]


def test_a_sliding_window_stops_growing_and_a_state_never_grows() -> None:
    sliding, state = measure_footprint(tiny_model("gemma3_text")), measure_footprint(tiny_model("mamba"))
    grown = [sliding.kv_bytes(tokens + 1) - sliding.kv_bytes(tokens) for tokens in (1, 1000)]
    assert 0 < grown[1] < grown[0]
    assert state.kv_bytes(1) == state.kv_bytes(1000) > 0


def test_a_model_that_cannot_run_here_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")

    def needs_metal(*_: object, **__: object) -> None:
        raise RuntimeError("no Metal back end")

    monkeypatch.setattr(type(model), "__call__", needs_metal)
    with pytest.raises(CheckpointError, match=r"no forward on this device .*no Metal back end"):
        measure_footprint(model)


def toy(tied: bool) -> nn.Module:
    """An embedding of 64 rows, a layer, and an output layer, if it is not the embedding."""
    head = [] if tied else [nn.Linear(8, 64, bias=False)]
    return nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 8, bias=False), *head)


def test_an_embedding_that_only_looks_up_is_not_read() -> None:
    embedding, layer = 64 * 8 * 4, 8 * 8 * 4
    assert step_weight_bytes(toy(tied=True)) == embedding + layer
    assert step_weight_bytes(toy(tied=False)) == embedding + layer  # the head in its place


def embedding_bytes(model: nn.Module, name: str) -> int:
    return sum(weight.nbytes for path, weight in parameters(model).items() if f"{name}." in path)


@pytest.mark.parametrize(
    ("family", "looked_up"),
    [("gemma3n", "embed_tokens_per_layer"), ("gemma4_text", "embed_tokens_per_layer"), ("gpt2", "wpe")],
)
def test_a_second_embedding_beside_a_tied_one_is_not_read(family: str, looked_up: str) -> None:
    model = tiny_model(family)
    weights = sum(weight.nbytes for weight in parameters(model).values())
    assert embedding_bytes(model, looked_up) > 0
    assert measure_footprint(model).step_weight_bytes == weights - embedding_bytes(model, looked_up)


def test_a_head_that_a_tied_model_leaves_unused_is_not_read() -> None:
    model = tiny_model("helium")
    weights = sum(weight.nbytes for weight in parameters(model).values())
    assert measure_footprint(model).step_weight_bytes == weights - embedding_bytes(model, "embed_tokens")


def test_an_embedding_that_is_the_output_layer_by_hand_is_read() -> None:
    model = tiny_model("seed_oss")
    assert measure_footprint(model).step_weight_bytes == sum(weight.nbytes for weight in parameters(model).values())


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "afm7", "deepseek_v3", "qwen3_next", "gemma3n"])
def test_keys_and_values_are_what_the_caches_hold(family: str) -> None:
    model = tiny_model(family)
    footprint, caches = measure_footprint(model), make_prompt_cache(model)
    for token in range(40):
        mx.eval(model(mx.array([[token]]), cache=caches))
    assert footprint.kv_bytes(40) == sum(map(held_bytes, caches))


def held_bytes(cache: Any) -> int:
    """Bytes of what a cache holds, without spare room."""
    if isinstance(cache, ArraysCache):
        states: list[Any] = cache.cache
        return sum(state.nbytes for state in states if state is not None)
    return 0 if cache.keys is None else sum(array.nbytes for array in cache.keys_and_values())


def test_experts_are_not_known() -> None:
    assert step_weight_bytes(tiny_model("mixtral")) is None
    llama = tiny_model("llama")
    assert step_weight_bytes(llama) in range(1, sum(weight.nbytes for weight in parameters(llama).values()) + 1)


def test_the_probe_counts_bytes_over_seconds() -> None:
    ticks = count()
    probe = probe_bandwidth("cpu", "float32", clock=lambda: float(next(ticks)))  # every run takes one second
    assert probe.read_gb_s == pytest.approx(probe.buffer_bytes / 1e9)
    assert probe.copy_gb_s == pytest.approx(2 * probe.buffer_bytes / 1e9)
    assert probe.buffer_bytes > (probe.cache_bytes or 0)
    assert len(probe.read_samples) == len(probe.copy_samples) == 7
    assert last_level_cache() == probe.cache_bytes
