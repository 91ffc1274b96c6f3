from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.loader.gguf import convert_gguf
from mlxcel_engine.loader.gguf_config import llama3_divisors
from mlxcel_engine.loader.gguf_weights import unpermute_rows

from .gguf_files import FEED, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, TinyLlama, llama_tensors, matrix, plain

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

PROMPT = [1, 70, 80, 90, 100, 2]
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(tiny: TinyLlama, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    convert_gguf(tiny.write(tmp_path / "tiny.gguf"), out)
    return out


def read_config(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "config.json").read_text())
    return content


def logits(model: Any) -> NDArray[np.float32]:
    return np.array(model(mx.array([PROMPT])).astype(mx.float32))


def loaded_logits(out: Path) -> NDArray[np.float32]:
    """Logits of the checkpoint as mlx-lm loads it, computed in float32."""
    from mlx_lm.utils import dequantize_model, load_model

    model = load_model(out)[0]
    model.set_dtype(mx.float32)
    return logits(dequantize_model(model))


def reference_logits(tiny: TinyLlama, **changes: Any) -> NDArray[np.float32]:
    """Logits of a float32 llama with interleaved rope on the rows in GGUF's own order."""
    from mlx_lm.models.llama import Model, ModelArgs

    args: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FEED,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": 262,
        "rope_traditional": True,
        "tie_word_embeddings": "output.weight" not in tiny.tensors,
    }
    model = Model(ModelArgs(**{**args, **changes}))
    weights = []
    for name, tensor in tiny.tensors.items():
        *layer, part, kind = name.removeprefix("blk.").split(".")
        prefix = "".join(f"model.layers.{number}." for number in layer)
        weights.append((f"{prefix}{NAMES[part]}.{kind}", mx.array(tensor.values)))
    model.load_weights(weights)
    return logits(model)


@given(heads=st.integers(1, 5), half=st.integers(1, 8), columns=st.integers(0, 3))
def test_undoing_the_row_order_is_the_inverse_of_llama_cpp_s(heads: int, half: int, columns: int) -> None:
    shape = (heads * half * 2, *([columns] if columns else []))
    rows = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    stored = rows.reshape(heads, 2, half, *shape[1:]).swapaxes(1, 2).reshape(shape)
    assert np.array_equal(np.array(unpermute_rows(mx.array(stored), heads)), rows)


@given(heads=st.integers(1, 4), half=st.integers(1, 8), offset=st.integers(0, 50), seed=st.integers(0, 99))
def test_half_rope_scores_equal_interleaved_rope_scores(heads: int, half: int, offset: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    stored = mx.array(random.normal(size=(2, heads * half * 2, 3)).astype(np.float32))
    vector = mx.array(random.normal(size=(3, 1)).astype(np.float32))

    def rotated(rows: mx.array, place: int, interleaved: bool) -> mx.array:
        heads_first = (rows @ vector).reshape(1, heads, 1, half * 2)
        return mx.fast.rope(heads_first, half * 2, traditional=interleaved, base=1e4, scale=1.0, offset=place)

    query, key = stored
    wanted = (rotated(query, offset, True) * rotated(key, 3, True)).sum(-1)
    query, key = unpermute_rows(query, heads), unpermute_rows(key, heads)
    found = (rotated(query, offset, False) * rotated(key, 3, False)).sum(-1)
    assert np.allclose(np.array(found), np.array(wanted), atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0"])
def test_the_converted_model_computes_what_the_file_says(kind: str, tmp_path: Path) -> None:
    tiny = TinyLlama(tensors=llama_tensors(kind))
    out = convert(tiny, tmp_path)
    assert np.allclose(loaded_logits(out), reference_logits(tiny), atol=1e-4)
    assert ("quantization" in read_config(out)) == kind.startswith("Q")


def test_a_wrong_row_order_would_show(tmp_path: Path) -> None:
    tiny = TinyLlama(tensors=llama_tensors("F32"))
    out = convert(tiny, tmp_path)
    assert np.abs(loaded_logits(out) - reference_logits(tiny, rope_traditional=False)).max() > 0.05


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_quantized_values_survive_exactly(kind: str, bits: int, tmp_path: Path) -> None:
    tiny = TinyLlama(tensors=llama_tensors(kind))
    weights = mx.load(convert(tiny, tmp_path) / "model.safetensors")
    assert isinstance(weights, dict)
    path = "model.layers.1.mlp.down_proj"
    scales, biases = (weights[f"{path}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
    found = mx.dequantize(weights[f"{path}.weight"], scales, biases, group_size=32, bits=bits)
    assert np.allclose(np.array(found), tiny.tensors["blk.1.ffn_down.weight"].values, rtol=0, atol=1e-7)


def test_a_mix_of_widths_loads(tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.tensors["token_embd.weight"] = matrix(262, HIDDEN, "Q8_0", 1)
    tiny.tensors["blk.0.ffn_down.weight"] = matrix(HIDDEN, FEED, "Q8_0", 2)
    tiny.tensors["blk.1.attn_v.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN, "F16", 3)
    tiny.tensors["blk.1.attn_q.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN, "Q8_0", 4)
    out = convert(tiny, tmp_path)
    assert np.allclose(loaded_logits(out), reference_logits(tiny), atol=1e-4)
    quantization = read_config(out)["quantization"]
    assert (quantization["group_size"], quantization["bits"]) == (32, 4)
    assert quantization["model.embed_tokens"] == {"group_size": 32, "bits": 8}


def test_an_output_tensor_unties_the_embedding(tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.tensors["output.weight"] = matrix(262, HIDDEN, "Q8_0", 50)
    out = convert(tiny, tmp_path)
    assert read_config(out)["tie_word_embeddings"] is False
    assert np.allclose(loaded_logits(out), reference_logits(tiny), atol=1e-4)


def test_biases_are_reordered_and_the_missing_ones_are_zero(tmp_path: Path) -> None:
    tiny = TinyLlama(tensors=llama_tensors("F32"))
    rows = {"attn_q": HEADS * HEAD_DIM, "attn_k": KV_HEADS * HEAD_DIM, "attn_v": KV_HEADS * HEAD_DIM}
    random = np.random.default_rng(9)
    for layer in range(LAYERS):
        for part, count in rows.items():
            bias = random.normal(size=count).astype(np.float32)
            tiny.tensors[f"blk.{layer}.{part}.bias"] = plain(bias)
    out = convert(tiny, tmp_path)
    for layer in range(LAYERS):
        tiny.tensors[f"blk.{layer}.attn_output.bias"] = plain(np.zeros(HIDDEN, np.float32))
    assert np.allclose(loaded_logits(out), reference_logits(tiny, attention_bias=True), atol=1e-4)


def test_linear_rope_scaling(tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    out = convert(tiny, tmp_path)
    scaling = {"type": "linear", "factor": 4.0}
    assert read_config(out)["rope_scaling"] == scaling
    assert np.allclose(loaded_logits(out), reference_logits(tiny, rope_scaling=scaling), atol=1e-4)


def test_llama3_rope_scaling_is_recovered(tmp_path: Path) -> None:
    from mlx_lm.models.rope_utils import Llama3RoPE

    tiny = TinyLlama()
    tiny.metadata["llama.rope.freq_base"] = 500000.0
    divisors = llama3_divisors(500000.0, HEAD_DIM, 32.0)
    tiny.tensors["rope_freqs.weight"] = plain(np.array(divisors, np.float32))
    scaling = read_config(convert(tiny, tmp_path))["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == pytest.approx(32.0)
    rope = Llama3RoPE(HEAD_DIM, base=500000.0, scaling_config=scaling)
    plain_frequencies = 500000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    assert np.allclose(np.array(rope._freqs), plain_frequencies * divisors, rtol=1e-4)


def test_weights_that_cannot_be_written_are_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "out" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        convert(TinyLlama(), tmp_path)


def test_every_end_of_answer_is_listed(tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.metadata["tokenizer.ggml.eot_token_id"] = 0
    generation = json.loads((convert(tiny, tmp_path) / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [0, 2]}
