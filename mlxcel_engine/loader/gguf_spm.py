"""The merges that SentencePiece's byte-pair models leave implicit in their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def merges_by_score(pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that joins to a piece, in the order in which SentencePiece would prefer them.

    SentencePiece joins whichever neighbours make the piece of the highest score, the leftmost on a tie (Kudo and
    Richardson, 2018). Of the pairs that make the same piece, the one with the longer left part comes first: joining
    from the left leaves longer parts on the left.

    Args:
        pieces: score of each piece that a merge may make or use.

    """
    merges = []
    for piece in sorted(pieces, key=lambda piece: -pieces[piece]):
        for cut in range(len(piece) - 1, 0, -1):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                merges.append((left, right))
    return merges
