"""The streamed text against the tokenizer's decoding of all ids, and where mlx-lm's detokenizers differ from it.

The differences are recorded, not corrected: our text must be that of mlx-lm's loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.text import TextStream

from .tokenizers_built import bpe, bytes_only, decode, ids_of, naive_spm, spm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_lm.tokenizer_utils import TokenizerWrapper

QUICK = settings(max_examples=150)
SPM_PIECES = ["▁▁", "▁two", "▁roads", "ab", "▁ab", "bc", "x", "é", "\n", "</s>"]
EMOJI = [f"<0x{byte:02X}>" for byte in "😀".encode()]


def joined(tokenizer: TokenizerWrapper, ids: Sequence[int]) -> str:
    stream = TextStream(tokenizer.detokenizer)
    return "".join([*(stream.push(token) for token in ids), stream.finish()])


@pytest.mark.parametrize("tokenizer", [bytes_only(), bpe()], ids=["bytes", "bpe"])
@QUICK
@given(st.data())
def test_case_26_byte_level_is_the_whole_decode_less_one_leading_space(
    tokenizer: TokenizerWrapper, data: st.DataObject
) -> None:
    """Any ids, so invalid and incomplete UTF-8 too; but not the byte 0, which has its own test."""
    (zero,) = ids_of(tokenizer, "Ā")
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1).filter(lambda i: i != zero), max_size=12))
    assert joined(tokenizer, ids) == decode(tokenizer, ids).removeprefix(" ")


@pytest.mark.parametrize("strip", [True, False])
@QUICK
@given(st.lists(st.sampled_from([["▁two"], ["ab"], ["é"], ["\n"], ["</s>"], ["▁▁"], EMOJI]), max_size=8))
def test_case_26_sentencepiece_is_the_whole_decode(strip: bool, words: list[list[str]]) -> None:
    tokenizer = spm(strip=strip)
    ids = ids_of(tokenizer, *(piece for word in words for piece in word))
    assert joined(tokenizer, ids) == decode(tokenizer, ids)


@QUICK
@given(st.lists(st.sampled_from(SPM_PIECES), max_size=8))
def test_case_26_the_naive_detokenizer_is_the_whole_decode(pieces: list[str]) -> None:
    """Without byte tokens and without a leading space to strip, see below."""
    tokenizer = naive_spm(strip=False)
    ids = ids_of(tokenizer, *pieces)
    assert joined(tokenizer, ids) == decode(tokenizer, ids)


KNOWN = [
    ("BPE drops one leading space (_maybe_trim_space)", bpe(), ["Ġa", "b"], "ab", " ab"),
    ("BPE takes byte 0 for no byte (`if res`), so it shows its stand-in letter", bpe(), ["a", "Ā", "b"], "aĀb", "a\0b"),
    ("SPM strips a space again while its text is still empty", spm(), ["▁", "▁two"], "two", " two"),
    ("SPM replaces a broken character once, the decoder each of its bytes", spm(), [*EMOJI[:3], "x"], "�x", "���x"),
    ("SPM takes the bytes of ▁ for a space", spm(strip=False), ["<0xE2>", "<0x96>", "<0x81>"], " ", "▁"),
    ("Naive decodes each line alone, so each loses a leading space", naive_spm(), ["\n", "▁two"], "\ntwo", "\n two"),
    (
        "Naive says a character again when byte tokens follow it: the decoder breaks the whole run for a while",
        naive_spm(),
        [*EMOJI, *EMOJI],
        "😀😀😀",
        "😀😀",
    ),
]


@pytest.mark.parametrize(("tokenizer", "pieces", "text", "decoded"), [k[1:] for k in KNOWN], ids=[k[0] for k in KNOWN])
def test_mlx_lm_streams_other_text_than_it_decodes(
    tokenizer: TokenizerWrapper, pieces: list[str], text: str, decoded: str
) -> None:
    ids = ids_of(tokenizer, *pieces)
    assert joined(tokenizer, ids) == text
    assert decode(tokenizer, ids) == decoded
    assert text != decoded


def test_an_id_beyond_the_tokenizer_is_an_exclamation_mark() -> None:
    """mlx-lm's BPE fallback for a padded vocabulary; the tokenizer itself decodes such an id to nothing."""
    ids = [*ids_of(bpe(), "a"), len(bpe()) + 7]
    assert joined(bpe(), ids) == "a!"
    assert decode(bpe(), ids) == "a"
