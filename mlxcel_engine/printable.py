"""What other programs wrote, made fit to be shown; records keep it as it was."""

from __future__ import annotations

import re

# ECMA-48's control sequences (colours, movement), strings (titles, links) and the shorter escapes.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\])")


def printable(text: str) -> str:
    """``text`` as one line: without escape sequences, white space as spaces, other control characters spelled out.

    What is left does nothing to a terminal and is fit for XML.
    """
    return "".join(map(_shown, _SEQUENCE.sub("", text)))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()
