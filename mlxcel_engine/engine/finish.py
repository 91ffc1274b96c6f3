"""When a sequence ends. No MLX: decided on the host from the tokens that were read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

FinishReason = Literal["stop", "length"]
FinishDetail = Literal["eos", "stop-string", "loop", "max-tokens", "context"]


@dataclass(frozen=True)
class LoopRule:
    """Ends a sequence whose last tokens are nothing but exact repeats of one period.

    It fires when, for some period of at most ``max_period`` tokens, the tail is at least ``repeats`` whole copies of
    it and at least ``min_tokens`` long. ``min_tokens`` lets short periods (a row of dashes) go on for longer.
    """

    max_period: int = 32
    repeats: int = 4
    min_tokens: int = 64

    def __post_init__(self) -> None:
        if self.max_period < 1 or self.repeats < 2 or self.min_tokens < 1:
            raise EngineError(f"{self}: needs max_period of 1 or more, repeats of 2 or more, min_tokens of 1 or more")

    def fires(self, tokens: Sequence[int]) -> bool:
        """Whether the tail of ``tokens``, the generated ones only, is such a loop."""
        return any(self._repeats(tokens, period) for period in range(1, self.max_period + 1))

    def _repeats(self, tokens: Sequence[int], period: int) -> bool:
        span = period * max(self.repeats, -(-self.min_tokens // period))
        if len(tokens) < span or tokens[-1] != tokens[-1 - period]:
            return False
        tail = tokens[-span:]
        return tail[period:] == tail[:-period]


@dataclass(frozen=True)
class StopRules:
    """What ends a sequence.

    ``eos_ids`` is the config's and the tokenizer's merged; ``max_tokens`` counts generated tokens, an ending EOS too;
    ``stop_strings`` are matched in the generated text (see :mod:`mlxcel_engine.engine.text`); ``context_length``
    bounds prompt + generated tokens; ``loop`` is off by default.
    """

    eos_ids: frozenset[int]
    max_tokens: int
    stop_strings: tuple[str, ...] = ()
    context_length: int | None = None
    loop: LoopRule | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise EngineError(f"max_tokens {self.max_tokens}: give 0 or more")
        if "" in self.stop_strings:
            raise EngineError("an empty stop string would end every sequence at once; leave it out")
        if self.context_length is not None and self.context_length < 1:
            raise EngineError(f"context_length {self.context_length}: give 1 or more, or None for no bound")


@dataclass(frozen=True)
class Finish:
    """Why a sequence ended: ``reason`` is what mlx-lm's loops report for the event, ``detail`` says which rule it was.

    mlx-lm knows neither a context bound nor loops. Both cut an unfinished text off, so both are ``length``.
    ``stop_string`` is the one that was found, when it was one.
    """

    reason: FinishReason
    detail: FinishDetail
    stop_string: str | None = None


def token_budget(prompt_tokens: int, rules: StopRules) -> int:
    """How many tokens a sequence may generate at most: ``max_tokens``, or fewer where the context ends first.

    Raises:
        EngineError: the prompt fills the context, so that not one token fits.

    """
    if rules.max_tokens == 0 or rules.context_length is None:
        return rules.max_tokens
    room = rules.context_length - prompt_tokens
    if room < 1:
        raise EngineError(
            f"a prompt of {prompt_tokens} tokens leaves no room in a context of {rules.context_length}; shorten it"
        )
    return min(rules.max_tokens, room)


def finish_step(
    tokens: Sequence[int], prompt_tokens: int, rules: StopRules, stop_string: str | None = None
) -> Finish | None:
    """Why the sequence ends with the last of its generated ``tokens`` (at least one), or None when it goes on.

    ``stop_string`` is the one that this token completed in the text. When several rules apply at once the first of
    these is reported: EOS, stop string, loop, ``max_tokens``, context.
    """
    if tokens[-1] in rules.eos_ids:
        return Finish("stop", "eos")
    if stop_string is not None:
        return Finish("stop", "stop-string", stop_string)
    if rules.loop is not None and rules.loop.fires(tokens):
        return Finish("length", "loop")
    if len(tokens) >= rules.max_tokens:
        return Finish("length", "max-tokens")
    if rules.context_length is not None and prompt_tokens + len(tokens) >= rules.context_length:
        return Finish("length", "context")
    return None
