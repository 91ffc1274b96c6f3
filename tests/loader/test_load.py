"""The one loader: policy, errors of broken checkpoints, and a tree without lazy arrays."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel_engine.errors import CheckpointError, UsageError
from mlxcel_engine.loader.cache import CheckpointCache
from mlxcel_engine.loader.evaluate import evaluate_everything, module_arrays
from mlxcel_engine.loader.load import LoadedModel, apply_policy, load
from mlxcel_engine.loader.policy import LoadPolicy, resolve_policy
from mlxcel_engine.loader.synthetic import random_quantized_model, synthetic_config
from tests.loaded import write_checkpoint
from tests.tiny import parameters, tiny_model

if TYPE_CHECKING:
    from pathlib import Path

CPU = LoadPolicy("float32", dequantize=True)


def open_checkpoint(folder: Path, policy: LoadPolicy = CPU) -> LoadedModel:
    return load(str(folder), policy, CheckpointCache(folder / "unused"), lambda _: None)


@pytest.mark.parametrize(
    ("device", "dtype", "weights", "expected"),
    [
        ("cpu", "auto", "auto", LoadPolicy("float32", dequantize=True)),
        ("gpu", "auto", "auto", LoadPolicy(None, dequantize=False)),
        ("cpu", "bfloat16", "quantized", LoadPolicy("bfloat16", dequantize=False)),
        ("gpu", "float16", "dequantized", LoadPolicy("float16", dequantize=True)),
    ],
)
def test_auto_is_resolved_by_device(device: Any, dtype: str, weights: str, expected: LoadPolicy) -> None:
    assert resolve_policy(device, dtype, weights) == expected


@pytest.mark.parametrize(("dtype", "weights"), [("float16", "auto"), ("int8", "auto"), ("auto", "packed")])
def test_what_a_cpu_cannot_do_is_refused_by_name(dtype: str, weights: str) -> None:
    with pytest.raises(UsageError, match=dtype if dtype != "auto" else weights):
        resolve_policy("cpu", dtype, weights)


def test_a_directory_loads_with_what_the_record_says(tmp_path: Path) -> None:
    loaded = open_checkpoint(write_checkpoint(tmp_path / "tiny", eos_token_id=[7, 9]))
    record = loaded.record
    assert (record.label, record.architecture, record.dtype, record.weights) == (
        "tiny",
        "llama",
        "float32",
        "unquantized",
    )
    assert (record.context_length, record.vocab_size, loaded.eos_ids) == (512, 300, frozenset({7, 9}))
    assert record.weight_bytes == sum(a.nbytes for a in parameters(tiny_model("llama")).values())


def test_eos_ids_of_config_generation_config_and_tokenizer_are_merged(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny", eos_token_id=7)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "eos_token": "!"}))
    assert len(open_checkpoint(folder).eos_ids) == 2
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 11]}))
    assert open_checkpoint(folder).eos_ids > {7, 11}


def test_null_rope_scaling_is_no_scaling(tmp_path: Path) -> None:
    plain = open_checkpoint(write_checkpoint(tmp_path / "a"))
    null = open_checkpoint(write_checkpoint(tmp_path / "b", rope_scaling=None))
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(plain.model(ids), null.model(ids))


def truncate(file: Path, keep: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


BREAKAGES: dict[str, tuple[Any, str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), "no config.json"),
    "broken json": (lambda d: (d / "config.json").write_text('{"model_type": "llama",'), "not readable JSON"),
    "json of another kind": (lambda d: (d / "config.json").write_text("7"), "no model_type"),
    "no model type": (lambda d: (d / "config.json").write_text("{}"), "no model_type"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no model"),
    "torch weights": (
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        r"it has \.bin, which is not read",
    ),
    "cut short": (lambda d: truncate(d / "model.safetensors", 0.5), "its header says"),
    "cut in the header": (lambda d: truncate(d / "model.safetensors", 0.001), "cut short"),
    "empty weights": (lambda d: truncate(d / "model.safetensors", 0), "cut short"),
    "missing key": (lambda d: rewrite(d, hidden_size=None), "hidden_size"),
    "unknown model type": (lambda d: rewrite(d, model_type="gpt-unheard-of"), "gpt-unheard-of"),
    "wrong shape": (lambda d: rewrite(d, hidden_size=64), "cannot be built"),
    "broken tokenizer": (lambda d: (d / "tokenizer.json").write_text("{"), "tokenizer cannot be loaded"),
    "remote code": (lambda d: rewrite(d, model_file="evil.py"), "--trust-remote-code"),
}


def rewrite(folder: Path, **changes: Any) -> None:
    """Change the config; None removes a key."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize("name", sorted(BREAKAGES))
def test_a_broken_checkpoint_is_one_line(name: str, tmp_path: Path) -> None:
    breakage, said = BREAKAGES[name]
    folder = write_checkpoint(tmp_path / "tiny")
    (folder / "evil.py").write_text("raise SystemExit('this code must not run')")
    breakage(folder)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(folder)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny")
    weights = parameters(tiny_model("llama"))
    weights.pop("model.layers.1.mlp.up_proj.weight")
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj"):
        open_checkpoint(folder)


def quantized(seed: int = 0) -> nn.Module:
    model = tiny_model("llama", seed)
    nn.quantize(model, 32, 4, class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[1] % 32 == 0)
    return model


def test_dequantized_weights_compute_what_the_quantized_ones_do() -> None:
    ids = mx.array([[5, 6, 7, 8]])
    packed, plain = quantized(), quantized()
    apply_policy(plain, CPU)
    assert not any("scales" in module for module in plain.modules())
    np.testing.assert_allclose(np.array(packed(ids)), np.array(plain(ids)), atol=1e-3)


def test_half_precision_scales_are_expanded_in_the_target_dtype() -> None:
    model = quantized()
    model.apply(lambda a: a.astype(mx.float16) if a.dtype == mx.float32 else a)
    layer = model.layers[0].self_attn.q_proj
    exact = mx.dequantize(
        layer.weight, layer.scales.astype(mx.float32), layer.biases.astype(mx.float32), layer.group_size, layer.bits
    )
    apply_policy(model, CPU)
    assert mx.array_equal(model.layers[0].self_attn.q_proj.weight, exact)


def test_weights_that_must_keep_their_precision_keep_it() -> None:
    model = tiny_model("llama")
    object.__setattr__(model, "cast_predicate", lambda path: "norm" not in path)
    apply_policy(model, LoadPolicy("bfloat16", dequantize=False))
    dtypes = {path: weight.dtype for path, weight in parameters(model).items()}
    assert dtypes["model.norm.weight"] == mx.float32
    assert dtypes["model.embed_tokens.weight"] == mx.bfloat16


def run_in_thread(model: nn.Module) -> str | None:
    """Run a forward in a new thread; the error it met, if any."""
    met: list[str] = []

    def forward() -> None:
        try:
            mx.eval(model(mx.array([[1, 2, 3]])))
        except RuntimeError as error:
            met.append(str(error))

    thread = threading.Thread(target=forward)
    thread.start()
    thread.join()
    return met[0] if met else None


def test_a_rope_with_private_lazy_arrays_runs_in_another_thread_once_evaluated() -> None:
    model = tiny_model("llama3-rope")
    error = run_in_thread(model)
    assert error is not None  # the negative control: parameters alone were evaluated
    assert "Stream" in error
    evaluate_everything(model)
    assert run_in_thread(model) is None


def test_arrays_outside_the_parameters_are_found() -> None:
    model = tiny_model("llama3-rope")
    found = {id(a) for a in module_arrays(model)}
    assert all(id(layer.self_attn.rope._freqs) in found for layer in model.layers)
    assert {id(a) for a in parameters(model).values()} <= found


def test_synthetic_weights_come_from_the_seed_and_are_four_bit() -> None:
    small = {**synthetic_config("llama-3.2-1b"), "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
    small |= {"intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    one, same, other = (random_quantized_model(small, seed) for seed in (0, 0, 1))
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(one(ids), same(ids))
    assert not mx.array_equal(one(ids), other(ids))
    assert bool(mx.isfinite(one(ids)).all())
    assert one.layers[0].mlp.up_proj.bits == 4
    with pytest.raises(CheckpointError, match=r"qwen3-1\.7b"):
        synthetic_config("gpt-9")
