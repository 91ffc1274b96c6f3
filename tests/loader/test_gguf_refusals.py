from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.gguf import convert_gguf
from mlxcel_engine.loader.gguf_header import read_header

from .gguf_files import HEAD_DIM, HIDDEN, Tensor, TinyLlama, plain

if TYPE_CHECKING:
    from pathlib import Path


def refusal(source: Path, tmp_path: Path) -> str:
    """Return the one-line message with which a conversion is refused; nothing may be written before it."""
    out = tmp_path / "out"
    with pytest.raises(CheckpointError) as caught:
        convert_gguf(source, out)
    message = str(caught.value)
    assert "\n" not in message
    assert str(source) in message
    assert not (out / "model.safetensors").exists()
    return message


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"general.architecture": "qwen3"}, "'qwen3'"),
        ({"llama.expert_count": 8}, "8 experts"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "'yarn'"),
        ({"llama.rope.dimension_count": 8, "llama.attention.key_length": 16}, "8 rotated"),
        ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count"),
        ({"llama.attention.head_count_kv": 4}, "k_proj"),
        ({"llama.vocab_size": 300}, "300"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "embed_tokens"),
        ({"llama.block_count": 1}, "blk.1"),
        ({"llama.block_count": 3}, "model.layers.2"),
    ],
)
def test_metadata_that_is_not_converted_is_named(changes: dict[str, Any], value: str, tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.metadata |= changes
    assert value in refusal(tiny.write(tmp_path / "tiny.gguf"), tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.embedding_length",
        "llama.block_count",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.context_length",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.eos_token_id",
    ],
)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    tiny = TinyLlama()
    del tiny.metadata[key]
    assert key in refusal(tiny.write(tmp_path / "tiny.gguf"), tmp_path)


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_inp.weight", "blk.9.attn_q.weight", "vision.weight"])
def test_an_unknown_tensor_is_named(name: str, tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.tensors[name] = plain(np.zeros(HIDDEN, np.float32))
    assert name in refusal(tiny.write(tmp_path / "tiny.gguf"), tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tiny = TinyLlama()
    del tiny.tensors["blk.1.ffn_up.weight"]
    assert "model.layers.1.mlp.up_proj" in refusal(tiny.write(tmp_path / "tiny.gguf"), tmp_path)


@pytest.mark.parametrize(("kind", "size"), [("Q5_0", 22), ("BF16", 64)])
def test_a_tensor_type_that_would_lose_is_named(kind: str, size: int, tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.tensors["output.weight"] = Tensor(kind, bytes(size), np.zeros((1, 32), np.float32))
    message = refusal(tiny.write(tmp_path / "tiny.gguf"), tmp_path)
    assert "output.weight" in message
    assert kind in message


@pytest.mark.parametrize("divisors", [[1.0] * (HEAD_DIM // 2 - 1) + [9.0], [1.0, 8.0], [0.0] * (HEAD_DIM // 2)])
def test_rope_divisors_other_than_llama3_are_refused(divisors: list[float], tmp_path: Path) -> None:
    tiny = TinyLlama()
    tiny.tensors["rope_freqs.weight"] = plain(np.array(divisors, np.float32))
    assert "rope_freqs.weight" in refusal(tiny.write(tmp_path / "tiny.gguf"), tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"GG", "2"),
        (b"PK\x03\x04 a zip", "PK"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, sys.maxsize), "header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, sys.maxsize), "header"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "type 99"),
    ],
)
def test_what_is_no_gguf_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    source = tmp_path / "bad.gguf"
    source.write_bytes(content)
    assert reason in refusal(source, tmp_path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.gguf", tmp_path)
    assert "directory" in refusal(tmp_path, tmp_path)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = TinyLlama().write(tmp_path / "tiny.gguf").read_bytes()
    source = tmp_path / "cut.gguf"
    for end in range(0, len(whole), 997):
        source.write_bytes(whole[:end])
        with pytest.raises(CheckpointError):
            read_header(source)
    source.write_bytes(whole[: len(whole) - 40])
    assert "truncated" in refusal(source, tmp_path)
    source.write_bytes(whole)
    assert read_header(source).text("general.architecture") == "llama"


@settings(max_examples=60)
@given(data=st.data())
def test_a_garbled_header_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny = TinyLlama(metadata={"general.architecture": "llama", "list": [1, 2], "names": ["a", "b"]})
    source = tiny.write(tmp_path_factory.mktemp("garbled") / "tiny.gguf")
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, 1500))] = data.draw(st.integers(0, 255))
    source.write_bytes(content)
    try:
        read_header(source)
    except CheckpointError as error:
        assert "\n" not in str(error)  # noqa: PT017
