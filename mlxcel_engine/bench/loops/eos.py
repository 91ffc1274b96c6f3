"""Lets ``mlx-lm``'s loops run past the end of text, as ``mlx_lm.benchmark`` does."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_lm.tokenizer_utils import TokenizerWrapper


@contextmanager
def ending_with(tokenizer: TokenizerWrapper, eos_ids: frozenset[int]) -> Iterator[None]:
    """Let ``eos_ids`` alone end a stream while the context is open."""
    before = tokenizer.eos_token_ids
    tokenizer.eos_token_ids = eos_ids
    try:
        yield
    finally:
        tokenizer.eos_token_ids = before
