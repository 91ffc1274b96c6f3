"""``tokenizer.json`` and ``tokenizer_config.json`` from a GGUF file's ``tokenizer.ggml.*`` metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.gguf_spm import merges_by_score

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenizers.pre_tokenizers import PreTokenizer

    from mlxcel_engine.loader.gguf_header import GgufHeader

_SPACE = "▁"

# Llama 3's published split.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Split:
    """How a ``tokenizer.ggml.pre`` cuts text, and what it implies where the file is silent."""

    make: Callable[[], PreTokenizer]
    whole_pieces_first: bool = False
    adds_bos: bool = False


def _byte_level() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_bytes() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _llama3() -> PreTokenizer:
    split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA3 = _Split(_llama3, whole_pieces_first=True, adds_bos=True)
_BYTE_LEVEL = _Split(_byte_level)
_SPLITS = {
    "smollm": _Split(_digits_then_bytes),
    "default": _BYTE_LEVEL,
    "gpt-2": _BYTE_LEVEL,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
}


def write_tokenizer(header: GgufHeader, out: Path) -> None:
    """Write the tokenizer of the GGUF file behind ``header`` into the existing directory ``out``.

    Raises:
        CheckpointError: as ``build_tokenizer``.
        OSError: ``out`` cannot be written.

    """
    (out / "tokenizer.json").write_text(build_tokenizer(header).to_str(pretty=True), encoding="utf-8")
    text = json.dumps(_tokenizer_config(header), indent=2, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def build_tokenizer(header: GgufHeader) -> Tokenizer:
    """Build the tokenizer that the GGUF file behind ``header`` describes; token ids are its token list's places.

    Raises:
        CheckpointError: the tokenizer's model or split is not known here, a key is missing or contradictory.

    """
    tokens, types = _vocabulary(header)
    model = header.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level_bpe(header, tokens)
    elif model == "llama":
        tokenizer, adds_bos = _sentencepiece_bpe(header, tokens, types), True
    else:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.model {model!r} is not converted: use a gpt2 or llama tokenizer"
        )
    for token, kind in zip(tokens, types, strict=True):
        if kind is TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind is TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    if header.flag("tokenizer.ggml.add_eos_token", False):
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.add_eos_token is true, which ends every prompt: use a generative model"
        )
    if header.flag("tokenizer.ggml.add_bos_token", adds_bos):
        index = _token_id(header, "bos", len(tokens))
        bos = tokens[index]
        tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, index)]
        )
    return tokenizer


def _vocabulary(header: GgufHeader) -> tuple[list[str], list[TokenType]]:
    tokens = header.strings("tokenizer.ggml.tokens")
    numbers = header.numbers("tokenizer.ggml.token_type")
    if len(numbers) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"{header.path}: {len(tokens)} tokens, {len(set(tokens))} of them distinct, {len(numbers)} token types: "
            "use an undamaged file"
        )
    try:
        return tokens, [TokenType(int(number)) for number in numbers]
    except ValueError as error:
        raise CheckpointError(f"{header.path}: tokenizer.ggml.token_type: {error}: use an undamaged file") from error


def _byte_level_bpe(header: GgufHeader, tokens: list[str]) -> tuple[Tokenizer, bool]:
    pre = header.text("tokenizer.ggml.pre")
    if pre not in _SPLITS:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.pre {pre!r} is not converted: use one of {', '.join(_SPLITS)}"
        )
    split = _SPLITS[pre]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    for merge in header.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise CheckpointError(f"{header.path}: merge {merge!r} is not of its tokens: use an undamaged file")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole_pieces_first))
    tokenizer.pre_tokenizer = split.make()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, split.adds_bos


def _sentencepiece_bpe(header: GgufHeader, tokens: list[str], types: list[TokenType]) -> Tokenizer:
    scores = header.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens) or TokenType.UNUSED in types:
        raise CheckpointError(
            f"{header.path}: {len(tokens)} tokens, {types.count(TokenType.UNUSED)} of them unused, {len(scores)} "
            "scores: use a file with a score a token and none unused"
        )
    mergeable = {
        token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind is TokenType.NORMAL
    }
    unknown = tokens[types.index(TokenType.UNKNOWN)] if TokenType.UNKNOWN in types else None
    tokenizer = Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            merges_by_score(mergeable),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=TokenType.BYTE in types,
        )
    )
    prefixed = header.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefixed else normalizers.Sequence([spaces])
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _token_id(header: GgufHeader, name: str, count: int) -> int:
    index = header.integer(f"tokenizer.ggml.{name}_token_id")
    if not 0 <= index < count:
        raise CheckpointError(
            f"{header.path}: {name} token {index} of {count} tokens does not exist: use an undamaged file"
        )
    return index


def _tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    tokens = header.strings("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": header.integer("llama.context_length"),
        "clean_up_tokenization_spaces": False,
    }
    for name, long_name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        key = f"tokenizer.ggml.{long_name}_token_id"
        if key in header.metadata or name in ("bos", "eos"):
            config[f"{name}_token"] = tokens[_token_id(header, long_name, len(tokens))]
    template = header.text("tokenizer.chat_template", "")
    if template:
        config["chat_template"] = template
    return config
