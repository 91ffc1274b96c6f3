"""Small tokenizers of each kind that mlx-lm has a streaming detokenizer for."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    NaiveStreamingDetokenizer,
    SPMStreamingDetokenizer,
    TokenizerWrapper,
)
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mlxcel_engine.loader.synthetic import byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_SPM_WORDS = ("▁", "▁▁", "▁two", "▁roads", "ab", "▁ab", "bc", *"abcxy .,\n", "é", "</", "/s")


@cache
def bytes_only() -> TokenizerWrapper:
    """The 256 bytes, as the tiny models have them."""
    return byte_tokenizer()


@cache
def bpe() -> TokenizerWrapper:
    """Byte-level BPE with merges inside, across words, and inside a character; ``<|end|>`` is its EOS."""
    merges = [
        ("a", "b"),
        ("b", "c"),
        ("Ġ", "a"),
        ("Ġ", "Ġ"),
        ("ab", "c"),
        ("Ã", "©"),
        ("ð", "Ł"),
        ("Ġa", "b"),
        ("c", "Ċ"),
    ]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*alphabet, *(left + right for left, right in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return _wrap(tokenizer, BPEStreamingDetokenizer, "<|end|>")


@cache
def spm(*, strip: bool = True) -> TokenizerWrapper:
    """SentencePiece-like with byte tokens; ``strip`` drops the space before the first word, as Llama 2 does."""
    return _wrap(_spm(strip), partial(SPMStreamingDetokenizer, trim_space=strip), "</s>")


@cache
def naive_spm(*, strip: bool = True) -> TokenizerWrapper:
    """The same, streamed as every tokenizer whose decoder mlx-lm does not recognise."""
    return _wrap(_spm(strip), NaiveStreamingDetokenizer, "</s>")


def _spm(strip: bool) -> Tokenizer:
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_SPM_WORDS]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return tokenizer


def _wrap(tokenizer: Tokenizer, detokenizer: Callable[..., Any], eos: str) -> TokenizerWrapper:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, eos_token=eos)
    return TokenizerWrapper(fast, detokenizer)


def ids_of(tokenizer: TokenizerWrapper, *pieces: str) -> list[int]:
    """The ids of tokens by their names."""
    ids: list[int] = tokenizer.convert_tokens_to_ids(list(pieces))
    return ids


def whole(tokenizer: TokenizerWrapper, ids: Iterable[int]) -> str:
    """What mlx-lm's detokenizer makes of all ``ids``, read token by token."""
    return "".join(segments(tokenizer, ids))


def segments(tokenizer: TokenizerWrapper, ids: Iterable[int]) -> list[str]:
    """Its segment after each token, and the last one after the flush."""
    detokenizer = tokenizer.detokenizer
    found: list[str] = []
    for token in ids:
        detokenizer.add_token(token)
        found.append(detokenizer.last_segment)
    detokenizer.finalize()
    return [*found, detokenizer.last_segment]


def decode(tokenizer: TokenizerWrapper, ids: Sequence[int]) -> str:
    """The tokenizer's own decoding of all ``ids`` at once."""
    text: str = tokenizer.decode(list(ids))
    return text
