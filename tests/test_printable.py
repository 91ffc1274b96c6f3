"""What a program wrote, made fit for a terminal line and for XML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_engine.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is: é 语 🙂", "as it is: é 语 🙂"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;no end", "\\x1b]0;no end"),
        ("a\x07b\x00c\x7f", "a\\x07b\\x00c\\x7f"),
        ("a\tb\nc\xa0d", "a b c d"),
        ("turned \u202e round", "turned \\u202e round"),
        ("half \udcff and \uffff", "half \\udcff and \\uffff"),
    ],
)
def test_sequences_go_and_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
def test_what_is_left_is_printable_and_stays_as_it_is(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
