"""Streamed text: cut exactly at the first stop string, nothing leaks, nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.generate import TextStateMachine

from mlxcel_engine.engine.text import TextStream, first_stop
from mlxcel_engine.errors import EngineError

from .tokenizers_built import bpe, bytes_only, decode, ids_of, naive_spm, segments, spm, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_lm.tokenizer_utils import TokenizerWrapper

TOKENIZERS = {"bytes": bytes_only(), "bpe": bpe(), "spm": spm(), "spm-no-strip": spm(strip=False), "naive": naive_spm()}
QUICK = settings(max_examples=120)
# Few letters, so that stop strings are often found and often almost found; characters of one to four bytes.
TEXTS = st.text(st.sampled_from("aabbc é😀\n"), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("aabbc é😀\n"), min_size=1, max_size=4), max_size=3).map(tuple)


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The documented rule, read character by character: the first complete one, the longest if several are."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def certain(text: str, stops: tuple[str, ...]) -> str:
    """``text`` without the longest end that a stop string may begin with."""
    ends = [length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
    return text[: len(text) - max(ends, default=0)]


def streamed(stream: TextStream, ids: Sequence[int]) -> list[str]:
    """The pieces, up to the first stop string or the end."""
    pieces: list[str] = []
    for token in ids:
        pieces.append(stream.push(token))
        if stream.stop_string is not None:
            return pieces
    return [*pieces, stream.finish()]


def check(tokenizer: TokenizerWrapper, ids: Sequence[int], stops: tuple[str, ...], kind: type[TextStream]) -> None:
    """All that a stream must hold, against the cut of the whole text."""
    stream = kind(tokenizer.detokenizer, stops)
    pieces = streamed(stream, ids)
    assert ("".join(pieces), stream.stop_string) == cut(whole(tokenizer, ids), stops)
    parts = segments(tokenizer, ids)
    for n in range(1, len(pieces) - 1):
        assert "".join(pieces[:n]) == certain("".join(parts[:n]), stops), "held back more, or less, than it must"


@pytest.mark.parametrize("name", TOKENIZERS)
@QUICK
@given(text=TEXTS, raw=st.lists(st.integers(0, 255), max_size=4), stops=STOPS)
@example("aab", [], ("ab",))
@example("abababc", [], ("ababc", "bab"))
@example("a😀", [0xF0, 0x9F], ("😀",))
@example("ab ", [], ("b ",))
def test_the_stream_is_the_whole_text_cut_at_the_first_stop(
    name: str, text: str, raw: list[int], stops: tuple[str, ...]
) -> None:
    tokenizer = TOKENIZERS[name]
    check(tokenizer, [*tokenizer.encode(text, add_special_tokens=False), *raw], stops, TextStream)


@pytest.mark.parametrize("name", TOKENIZERS)
@QUICK
@given(text=TEXTS)
def test_without_stops_the_pieces_are_the_detokenizers_own(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert streamed(TextStream(tokenizer.detokenizer), ids) == segments(tokenizer, ids)


@QUICK
@given(st.text("abc", max_size=12), STOPS)
@example("abca", ("abca", "bc"))
def test_the_first_stop_of_a_text(text: str, stops: tuple[str, ...]) -> None:
    found = first_stop(text, stops)
    assert cut(text, stops) == ((text, None) if found is None else (text[: found[0]], found[1]))


@QUICK
@given(st.text("abc", max_size=12), STOPS.filter(bool))
def test_the_rule_is_that_of_mlx_lms_text_state_machine(text: str, stops: tuple[str, ...]) -> None:
    machine = TextStateMachine({"normal": [(stop, None) for stop in stops]})
    state, segments = machine.split(machine.make_state(), text)
    held = state[3] if state[0] == "normal" else ""
    assert cut(text, stops)[0] == "".join(piece for _, piece in segments) + held


CUTS = [  # letters stand for one token each with the byte tokenizer
    ("over three tokens", "xx<e>yy", ("<e>",), ["x", "x", "", "", ""], "<e>"),
    ("a false start is given out", "x<e.y", ("<e>",), ["x", "", "", "<e.", "y", ""], None),
    ("a false start inside the real one", "<<e>", ("<e>",), ["", "<", "", ""], "<e>"),
    ("a false start at the end", "x<e", ("<e>",), ["x", "", "", "<e"], None),
    ("two overlapping, the one that is complete first", "xabcd", ("bcd", "abc"), ["x", "", "", ""], "abc"),
    ("the inner one of two is complete first", "xabcd", ("abcd", "bc"), ["x", "", "", "a"], "bc"),
    ("of two that end together the longer", "xabc", ("bc", "abc"), ["x", "", "", ""], "abc"),
    ("of two that start together the shorter", "xabc", ("abc", "ab"), ["x", "", ""], "ab"),
    ("the given order does not matter", "xabc", ("ab", "abc"), ["x", "", ""], "ab"),
    ("at the very start", "ab", ("ab",), ["", ""], "ab"),
    ("a character over four tokens", "x😀", ("😀",), ["x", "", "", "", ""], "😀"),
]


@pytest.mark.parametrize(("text", "stops", "pieces", "stop"), [c[1:] for c in CUTS], ids=[c[0] for c in CUTS])
def test_case_25_stop_strings_over_tokens(text: str, stops: tuple[str, ...], pieces: list[str], stop: str) -> None:
    tokenizer = bytes_only()
    stream = TextStream(tokenizer.detokenizer, stops)
    assert streamed(stream, tokenizer.encode(text)) == pieces
    assert stream.stop_string == stop


def test_a_token_that_goes_on_after_the_stop_string_is_cut_inside() -> None:
    stream = TextStream(bpe().detokenizer, ("b",))
    assert streamed(stream, ids_of(bpe(), "x", "abc")) == ["x", "a"]


def test_a_stop_string_that_only_the_flush_completes_is_cut() -> None:
    """The BPE detokenizer holds a lone space back until the next token."""
    stream = TextStream(bpe().detokenizer, ("x ",))
    assert streamed(stream, ids_of(bpe(), "a", "x", "Ġ")) == ["a", "", "", ""]
    assert stream.stop_string == "x "


def test_an_incomplete_character_is_a_replacement_at_the_end_and_not_before() -> None:
    broken = list("a😀b".encode()[:4])
    tokenizer = spm()
    ids = ids_of(tokenizer, *(f"<0x{byte:02X}>" for byte in broken))
    assert streamed(TextStream(tokenizer.detokenizer), ids) == ["a", "", "", "", "�"]
    assert bytes(broken).decode(errors="replace") == "a�"


def test_the_last_token_and_the_flush_can_be_one_piece() -> None:
    stream = TextStream(bytes_only().detokenizer, ("zz",))
    first, last = bytes_only().encode("az")
    assert [stream.push(first), stream.finish(last), stream.finish()] == ["a", "z", ""]


def test_two_stop_strings_in_one_token_are_told_apart_as_if_they_came_letter_by_letter() -> None:
    stream = TextStream(bpe().detokenizer, ("abc", "b"))
    assert streamed(stream, ids_of(bpe(), "abc")) == ["a"]
    assert stream.stop_string == "b"


def test_a_finished_stream_takes_no_token() -> None:
    (token,) = bytes_only().encode("a")
    ended, stopped = TextStream(bytes_only().detokenizer), TextStream(bytes_only().detokenizer, ("a",))
    assert ended.finish() == stopped.push(token) == ""
    for stream in (ended, stopped):
        for call in (stream.push, stream.finish):
            with pytest.raises(EngineError, match=f"token {token} came after the end"):
                call(token)


class Leaky(TextStream):
    def _may_begin_a_stop(self, text: str) -> int:
        return 0


class Greedy(TextStream):
    def _may_begin_a_stop(self, text: str) -> int:
        return min(len(text), self._longest - 1)


class Forgetful(TextStream):
    def finish(self, token: int | None = None) -> str:
        return ""


@pytest.mark.parametrize(("kind", "text"), [(Leaky, "x<e>"), (Greedy, "xyz<e>"), (Forgetful, "x<")])
def test_a_wrong_stream_is_found(kind: type[TextStream], text: str) -> None:
    tokenizer = bytes_only()
    check(tokenizer, tokenizer.encode(text), ("<e>",), TextStream)
    with pytest.raises(AssertionError):
        check(tokenizer, tokenizer.encode(text), ("<e>",), kind)


def test_the_decode_of_the_whole_differs_from_a_wrong_one() -> None:
    ids = bpe().encode("ab c")
    assert whole(bpe(), ids) == decode(bpe(), ids) != whole(bpe(), ids[:-1])
