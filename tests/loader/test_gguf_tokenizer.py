from __future__ import annotations

import io
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.gguf_header import GgufHeader
from mlxcel_engine.loader.gguf_tokenizer import build_tokenizer, write_tokenizer

from .gguf_files import tokenizer_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

FILE = Path("some.gguf")
TEXTS = [
    "",
    "a",
    " a",
    "  two  spaces   and more ",
    "the quick brown fox, it's 2026",
    "日本語 und Grüße",
    "😀 👩‍👩‍👧 emoji",
    "\n\nline\nline\t\ttab\r\n",
    " " * 17,
    "a" * 31,
    "<0x41>",
]


def header(changes: dict[str, Any] | None = None) -> GgufHeader:
    metadata = {**tokenizer_metadata(), "llama.context_length": 128, **(changes or {})}
    return GgufHeader(FILE, {key: value for key, value in metadata.items() if value is not None}, ())


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return list(tokenizer.encode(text).tokens)


def cuts(tokenizer: Tokenizer, text: str) -> list[str]:
    splitter = tokenizer.pre_tokenizer
    assert splitter is not None
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


def test_merges_and_added_tokens() -> None:
    tokenizer = build_tokenizer(header())
    assert pieces(tokenizer, "he he") == ["he", "Ġhe"]
    assert pieces(tokenizer, "<|im_start|>he<tool>") == ["<|im_start|>", "he", "<tool>"]
    ids = tokenizer.encode("<|im_start|>he<tool>").ids
    assert ids == [1, 259, 261]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he<tool>"


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("smollm", ["it", "'s", "Ġ", "1", "2", "3", "4", "Ġx", "'", "S"]),
        ("default", ["it", "'s", "Ġ1234", "Ġx", "'", "S"]),
        ("gpt-2", ["it", "'s", "Ġ1234", "Ġx", "'", "S"]),
        ("llama-bpe", ["it", "'s", "Ġ", "123", "4", "Ġx", "'S"]),
        ("llama3", ["it", "'s", "Ġ", "123", "4", "Ġx", "'S"]),
    ],
)
def test_splits(pre: str, wanted: list[str]) -> None:
    assert cuts(build_tokenizer(header({"tokenizer.ggml.pre": pre})), "it's 1234 x'S") == wanted


@pytest.mark.parametrize(("pre", "wanted"), [("llama-bpe", ["lo"]), ("default", ["l", "o"])])
def test_only_llama3_takes_a_whole_piece_that_no_merge_makes(pre: str, wanted: list[str]) -> None:
    changes = tokenizer_metadata(pre)
    changes["tokenizer.ggml.tokens"][-1] = "lo"
    changes["tokenizer.ggml.token_type"][-1] = 1
    assert pieces(build_tokenizer(header({**changes, "tokenizer.ggml.add_bos_token": False})), "lo") == wanted


@given(st.text())
def test_byte_level_decodes_to_the_text(text: str) -> None:
    tokenizer = build_tokenizer(header())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "he"),
        ({"tokenizer.ggml.add_bos_token": True}, "<|im_start|>"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "<|im_start|>"),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, "he"),
    ],
)
def test_beginning_of_sequence(changes: dict[str, Any], first: str) -> None:
    assert pieces(build_tokenizer(header(changes)), "he")[0] == first


def test_transformers_loads_it(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(header(), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.unk_token, loaded.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_end|>",
    )
    assert loaded.model_max_length == 128
    rendered = loaded.apply_chat_template([{"role": "user", "content": "he , he"}], tokenize=False)
    assert rendered == "<|im_start|>he , he<|im_end|>"
    assert loaded.decode(loaded.encode(rendered)) == rendered


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model"),
        ({"tokenizer.ggml.pre": "qwen2"}, "'qwen2'"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "'h zz'"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "2 token types"),
        ({"tokenizer.ggml.token_type": [9] * 262}, "9"),
        ({"tokenizer.ggml.tokens": ["a"] * 262}, "1 of them distinct"),
        ({"tokenizer.ggml.bos_token_id": 262}, "bos token 262"),
        ({"tokenizer.ggml.padding_token_id": 999}, "padding token 999"),
        ({"tokenizer.ggml.add_eos_token": True}, "add_eos_token"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, "'yes'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}, "1 scores"),
    ],
)
def test_what_is_not_converted_is_named(changes: dict[str, Any], value: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        write_tokenizer(header(changes), tmp_path)
    message = str(caught.value)
    assert value in message
    assert str(FILE) in message
    assert "\n" not in message


class SentencePiece:
    """A trained SentencePiece byte-pair model and the metadata that a GGUF file would hold of it."""

    def __init__(self, lines: Sequence[str], size: int) -> None:
        sentencepiece = pytest.importorskip("sentencepiece")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            minloglevel=2,
        )
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    def header(self, **changes: Any) -> GgufHeader:
        model, ids = self.processor, range(self.processor.get_piece_size())
        return GgufHeader(
            FILE,
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": [model.id_to_piece(index) for index in ids],
                "tokenizer.ggml.scores": [model.get_score(index) for index in ids],
                "tokenizer.ggml.token_type": [self._type(index) for index in ids],
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
                "llama.context_length": 128,
                **changes,
            },
            (),
        )

    def _type(self, index: int) -> int:
        kinds = {2: self.processor.is_unknown, 3: self.processor.is_control, 6: self.processor.is_byte}
        return next((kind for kind, holds in kinds.items() if holds(index)), 1)


@pytest.fixture(scope="module")
def trained() -> SentencePiece:
    choose = random.Random(0)
    words = ["".join(choose.choices("abcdeéü日", k=choose.randint(1, 7))) for _ in range(60)]
    lines = [(" " * choose.randint(1, 4)).join(choose.choices(words, k=10)) for _ in range(300)]
    return SentencePiece(lines, 500)


def test_sentencepiece_ids_are_equal(trained: SentencePiece) -> None:
    tokenizer = build_tokenizer(trained.header(**{"tokenizer.ggml.add_bos_token": False}))
    choose = random.Random(1)
    texts = TEXTS + ["".join(choose.choices("ab  cdeéü日\nz😀", k=choose.randint(0, 60))) for _ in range(2000)]
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert ids == trained.processor.encode(text), repr(text)
        assert tokenizer.decode(ids) == text


def test_sentencepiece_runs_of_a_periodic_text_are_equal() -> None:
    choose = random.Random(2)
    periodic = SentencePiece(["".join(choose.choices("aab ", k=40)) for _ in range(300)], 400)
    tokenizer = build_tokenizer(periodic.header(**{"tokenizer.ggml.add_bos_token": False}))
    for _ in range(2000):
        text = "".join(choose.choices("ab ", k=choose.randint(0, 60)))
        assert tokenizer.encode(text).ids == periodic.processor.encode(text), repr(text)


def test_sentencepiece_starts_with_bos_by_default(trained: SentencePiece) -> None:
    assert build_tokenizer(trained.header()).encode("a").ids[0] == 1


def test_sentencepiece_without_a_space_prefix(trained: SentencePiece) -> None:
    changes = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    tokenizer = build_tokenizer(trained.header(**changes))
    assert pieces(tokenizer, "éa")[0].startswith("é")
    # a leading space is then the text's own, and must come back
    assert tokenizer.encode(" éa").ids == trained.processor.encode("éa")
    assert tokenizer.decode(tokenizer.encode(" éa").ids) == " éa"


def test_mlx_lm_streams_sentencepiece_as_such(trained: SentencePiece, tmp_path: Path) -> None:
    from mlx_lm.tokenizer_utils import SPMStreamingDetokenizer
    from mlx_lm.tokenizer_utils import load as load_tokenizer

    write_tokenizer(trained.header(), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer.detokenizer, SPMStreamingDetokenizer)
    detokenizer: Any = tokenizer.detokenizer
    for token in tokenizer.encode("abc  é 😀", add_special_tokens=False):
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == "abc  é 😀"
    assert tokenizer.encode("abc") == [1, *trained.processor.encode("abc")]


def test_unused_sentencepiece_tokens_are_refused(trained: SentencePiece) -> None:
    count = trained.processor.get_piece_size()
    with pytest.raises(CheckpointError, match="1 of them unused"):
        build_tokenizer(trained.header(**{"tokenizer.ggml.token_type": [5, *[1] * (count - 1)]}))
