"""Tiny GGUF files: a writer of the format and a llama with a byte-level vocabulary, quantized as asked."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q8_0": 8, "BF16": 30}

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED, LAYERS, VOCABULARY = 64, 4, 2, 16, 96, 2, 262


@dataclass(frozen=True)
class Tensor:
    """Bytes of one tensor as GGUF stores them, and the float32 values that they stand for."""

    kind: str
    data: bytes
    values: NDArray[np.float32]


def plain(values: NDArray[np.float32], kind: str = "F32") -> Tensor:
    stored = values.astype(np.float16 if kind == "F16" else np.float32)
    return Tensor(kind, stored.tobytes(), stored.astype(np.float32))


def quantized(rows: int, columns: int, kind: str, seed: int) -> Tensor:
    """Random blocks of 32; the values follow from the format's definition, not from MLX."""
    random = np.random.default_rng(seed)
    blocks = rows * columns // 32
    step = 0.001 if kind == "Q8_0" else 0.01
    scale = random.uniform(0.5 * step, 1.5 * step, (blocks, 1)).astype(np.float16)
    low = random.uniform(-0.1, 0.0, (blocks, 1)).astype(np.float16)
    codes = random.integers(-127, 128, (blocks, 32)) if kind == "Q8_0" else random.integers(0, 16, (blocks, 32))
    # a block's low nibbles are its first half, the high ones its second
    packed = codes.astype(np.int8) if kind == "Q8_0" else (codes[:, :16] | codes[:, 16:] << 4).astype(np.uint8)
    head, offset = {
        "Q8_0": ([scale], np.zeros((blocks, 1))),
        "Q4_0": ([scale], -8.0 * scale),
        "Q4_1": ([scale, low], low),
    }[kind]
    values = codes.astype(np.float32) * scale.astype(np.float32) + offset.astype(np.float32)
    data = b"".join(b"".join(part[block].tobytes() for part in (*head, packed)) for block in range(blocks))
    return Tensor(kind, data, values.reshape(rows, columns))


def write_gguf(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any], version: int = 3) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, packed = _value(value)
        head += _text(key) + struct.pack("<I", kind) + packed
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", KINDS[tensor.kind], len(data))
        data += tensor.data + bytes(-len(tensor.data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value)
    items = [_value(item) for item in value]
    return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(packed for _, packed in items)


def byte_alphabet() -> list[str]:
    """The printable stand-ins of byte-level BPE, by code point."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def tokenizer_metadata(pre: str = "smollm") -> dict[str, Any]:
    """A byte-level vocabulary of 262: three control tokens, 256 bytes, two merges and a user-defined token."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "he", "Ġhe", "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(tokens) - 4), 4],
        "tokenizer.ggml.merges": ["h e", "Ġ he"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }


def llama_metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 128,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        **tokenizer_metadata(),
    }


@dataclass
class TinyLlama:
    """A GGUF llama to be changed and written; ``tensors`` are in GGUF's row order."""

    metadata: dict[str, Any] = field(default_factory=llama_metadata)
    tensors: dict[str, Tensor] = field(default_factory=lambda: llama_tensors("Q4_1"))

    def write(self, path: Path) -> Path:
        return write_gguf(path, self.tensors, self.metadata)


def llama_tensors(kind: str) -> dict[str, Tensor]:
    shapes = {
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_gate": (FEED, HIDDEN),
        "ffn_up": (FEED, HIDDEN),
        "ffn_down": (HIDDEN, FEED),
    }
    norm = plain(np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32))
    tensors = {"token_embd.weight": matrix(VOCABULARY, HIDDEN, kind, 1), "output_norm.weight": norm}
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{part}.weight": norm for part in ("attn_norm", "ffn_norm")}
        for seed, (part, (rows, columns)) in enumerate(shapes.items()):
            tensors[f"blk.{layer}.{part}.weight"] = matrix(rows, columns, kind, 10 * layer + seed + 2)
    return tensors


def matrix(rows: int, columns: int, kind: str, seed: int) -> Tensor:
    if kind in ("F32", "F16"):
        values = np.random.default_rng(seed).normal(0, 0.1, (rows, columns))
        return plain(values.astype(np.float32), kind)
    return quantized(rows, columns, kind, seed)
