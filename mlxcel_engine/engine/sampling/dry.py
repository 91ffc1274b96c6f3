"""DRY ("don't repeat yourself", p-e-w, text-generation-webui #5677), as llama.cpp computes it.

A token that would continue a repetition is lowered by ``multiplier * base ** (length - allowed_length)``, where
``length`` is that of the longest earlier stretch which it followed and which the history now ends with again, if it
is at least ``allowed_length``. Stretches lie in the window and do not reach back over the last breaker; single-token
breakers are never lowered. llama.cpp finds the lengths anew each step (Z-algorithm on the reversed window); here the
prompt's come from that on the host, and each new token updates them on the device: the common suffix of
``history[..j]`` and the history is one longer than that of ``history[..j-1]`` and the history before, where
``history[j]`` equals the new token, else 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np

from mlxcel_engine.engine.sampling.penalties import replaced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.sampling.breakers import Breakers
    from mlxcel_engine.engine.sampling.config import SamplingConfig
    from mlxcel_engine.engine.sampling.history import TokenHistory

_FLOAT_MAX_LOG: Final = 88.7228391  # llama.cpp's bound on the exponent: base ** exponent stays a float32


@dataclass(frozen=True)
class DryState:
    """After a history of some length: int32 arrays, never changed, so that an earlier state can be gone back to.

    ``matches`` ``[n]``: the common suffix lengths for the window's positions but the last. ``head`` and ``end``
    ``[1]``: positions of the first and last token of the latest breaker sequence, by its head; -1 for none.
    """

    matches: mx.array
    head: mx.array
    end: mx.array


class Dry:
    """DRY of one request over a vocabulary of ``vocab_size``; holds tables only, the state is the caller's."""

    def __init__(self, config: SamplingConfig, breakers: Breakers, vocab_size: int) -> None:
        self._config = config
        self._breakers = breakers
        self._longest_first = sorted(
            ((tail, mx.array(np.array(tail, dtype=np.uint32)), _mask(ids, vocab_size)) for tail, ids in breakers.heads),
            key=lambda entry: -len(entry[0]),
        )
        self._single = _mask(breakers.singles, vocab_size)
        base = config.dry_base
        self._max_exponent = int(_FLOAT_MAX_LOG / math.log(base)) if base > 1.000001 else 2**31 - 1

    def start(self, prompt: Sequence[int]) -> DryState:
        """The state after ``prompt``, computed on the host."""
        first = self._window_start(len(prompt))
        head, end = latest_breaker(prompt, self._breakers)
        matches = np.array(suffix_matches(prompt[first:]), dtype=np.int32)
        return DryState(mx.array(matches), mx.array([head], dtype=mx.int32), mx.array([end], dtype=mx.int32))

    def advance(self, state: DryState, history: TokenHistory, last: int) -> DryState:
        """The state after the token at ``last``, which ``history`` already holds."""
        before, after = self._window_start(last), self._window_start(last + 1)
        token = history.tokens(last, last + 1)
        matches = state.matches
        if before == after:  # nothing left the window: its first position continues no match
            matches = mx.concatenate([mx.zeros(1, dtype=mx.int32), matches])
        matches = mx.where(history.tokens(after, last) == token, matches + 1, 0)
        head, end = state.head, state.end
        for tail, tail_ids, heads in self._longest_first:
            start = last - len(tail)
            if start < 0:
                continue
            found = heads[history.tokens(start, start + 1)]
            if tail:
                found = found & mx.all(history.tokens(start + 1, last + 1) == tail_ids)
            found = found & (head <= start)
            head, end = mx.where(found, start, head), mx.where(found, last, end)
        return DryState(matches, head, end)

    def apply(self, logits: mx.array, state: DryState, history: TokenHistory, length: int) -> mx.array:
        """Lower the logits ``[1, V]`` (float32) of the tokens that would continue a repetition."""
        first, last = self._window_start(length), length - 1
        count = last - first
        if count < 1:
            return logits
        limit = mx.where(state.head >= first, last - state.end, length - first)
        room = mx.arange(1, count + 1, dtype=mx.int32)
        lengths = mx.minimum(mx.minimum(state.matches, room), limit)
        following = history.tokens(first + 1, length)
        longest = mx.full(logits.shape[-1], -1, dtype=mx.int32).at[following].maximum(lengths)[following]
        allowed = self._config.dry_allowed_length
        acts = (longest >= allowed) & ~self._single[following]
        exponent = mx.minimum(longest - allowed, self._max_exponent).astype(mx.float32)
        penalty = self._config.dry_multiplier * mx.power(mx.array(self._config.dry_base), exponent)
        return replaced(logits, following, logits[0, following] - mx.where(acts, penalty, 0.0))

    def _window_start(self, length: int) -> int:
        window = self._config.dry_penalty_last_n
        return 0 if window < 0 else max(0, length - window)


def _mask(ids: frozenset[int], vocab_size: int) -> mx.array:
    mask = np.zeros(vocab_size, dtype=np.bool_)
    mask[[token for token in ids if token < vocab_size]] = True
    return mx.array(mask)


def suffix_matches(tokens: Sequence[int]) -> list[int]:
    """For each position but the last, the length of the common suffix of the tokens up to it and all the tokens.

    The Z-algorithm (Gusfield, "Algorithms on Strings, Trees and Sequences", 1997) on the reversed tokens: linear.
    """
    reverse = list(reversed(tokens))
    count = len(reverse)
    lengths = [0] * count
    left = right = 0  # the stretch [left, right) that reaches furthest and equals a beginning
    for index in range(1, count):
        length = min(right - index, lengths[index - left]) if index < right else 0
        while index + length < count and reverse[length] == reverse[index + length]:
            length += 1
        lengths[index] = length
        if index + length > right:
            left, right = index, index + length
    return lengths[:0:-1]


def latest_breaker(tokens: Sequence[int], breakers: Breakers) -> tuple[int, int]:
    """First and last position of the breaker sequence with the latest head, the longest of them; -1, -1 for none."""
    by_length = sorted(breakers.heads, key=lambda entry: -len(entry[0]))
    for head in range(len(tokens) - 1, -1, -1):
        for tail, ids in by_length:
            end = head + len(tail)
            if tokens[head] in ids and end < len(tokens) and tuple(tokens[head + 1 : end + 1]) == tail:
                return head, end
    return -1, -1
