"""One request's sampling: what is fixed about it, and its state on the device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np

from mlxcel_engine.engine.sampling.draw import Turn, score_rows, spread
from mlxcel_engine.engine.sampling.dry import Dry, DryState
from mlxcel_engine.engine.sampling.history import TokenHistory
from mlxcel_engine.engine.sampling.penalties import apply_bias, apply_penalties
from mlxcel_engine.engine.sampling.settings import DrawSettings
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.sampling.resolved import ResolvedSampling

UNWIND_LIMIT: Final = 16  # tokens that can be taken back


@dataclass(frozen=True)
class _Tables:
    """What depends on the vocabulary size, which the first logits tell."""

    dry: Dry | None
    bias_ids: mx.array | None
    bias: mx.array | None


@dataclass(slots=True)
class _State:
    """``length`` tokens of history and ``position`` draws; never changed, and neither are its arrays."""

    length: int
    position: int
    dry: DryState | None
    mu: mx.array | None


class RowSampler:
    """The chain of one request: its first part changes logits by the history, its second part draws.

    One object per request; :func:`~mlxcel_engine.engine.sampling.sample_rows` and
    :func:`~mlxcel_engine.engine.sampling.as_mlx_lm` drive it. A draw depends on the row's logits, seed and position
    alone. ``sampling`` is what it was built from, with the seed that is used.
    """

    def __init__(self, sampling: ResolvedSampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self.settings = DrawSettings.of(sampling)
        self._prompt = tuple(prompt)
        config = sampling.config
        self.processes = bool(config.logit_bias) or config.penalizes or config.dry
        self._history = TokenHistory(prompt) if config.penalizes or config.dry else None
        self._tables: _Tables | None = None
        mu = mx.array([2 * config.mirostat_tau]) if config.mirostat else None
        self._state = _State(len(self._prompt), 0, None, mu)
        self._undo: deque[_State] = deque(maxlen=UNWIND_LIMIT)
        self._mus = [mu] if mu is not None else []

    @property
    def position(self) -> int:
        """How many tokens were drawn."""
        return self._state.position

    @property
    def length(self) -> int:
        """How many tokens of history, prompt and drawn ones, the first part sees."""
        return self._state.length

    @property
    def turn(self) -> Turn:
        """What the next draw needs besides logprobs."""
        return Turn(self.sampling.config.seed or 0, self._state.position, self._state.mu)

    @property
    def forced(self) -> int | None:
        """The token that the next draw is replaced by, if one is forced."""
        forced = self.sampling.forced
        return forced[self._state.position] if self._state.position < len(forced) else None

    def process(self, logits: mx.array) -> mx.array:
        """Apply bias, penalties and DRY to logits ``[1, V]``; computed in float32, returned in their own dtype.

        Raises:
            EngineError: a token of the prompt or a biased one is outside the vocabulary.

        """
        if not self.processes:
            return logits
        tables = self._tables or self._build(logits.shape[-1])
        config, state = self.sampling.config, self._state
        changed = logits.astype(mx.float32)
        if tables.bias_ids is not None and tables.bias is not None:
            changed = apply_bias(changed, tables.bias_ids, tables.bias)
        if self._history is not None and config.penalizes:
            first = 0 if config.repeat_last_n < 0 else max(0, state.length - config.repeat_last_n)
            changed = apply_penalties(changed, self._history.tokens(first, state.length), config)
        if self._history is not None and tables.dry and state.dry:
            changed = tables.dry.apply(changed, state.dry, self._history, state.length)
        return changed.astype(logits.dtype)

    def misfit(self, vocab_size: int) -> str | None:
        """Say which token of the prompt or of ``logit_bias`` is outside a vocabulary of ``vocab_size``, if one is."""
        if self._tables is not None or not self.processes:
            return None
        for token in (*self._prompt, *self.sampling.config.logit_bias):
            if not 0 <= token < vocab_size:
                return f"token {token} of the prompt or logit_bias is outside the vocabulary of {vocab_size}"
        return None

    def accept(self, token: mx.array, mu: mx.array | None) -> None:
        """Take the drawn ``token`` (``[1]``, lazy) into the history and go to the next position."""
        self._undo.append(self._state)
        self.append(token)
        self.advance(mu)

    def append(self, token: mx.array) -> None:
        """Take ``token`` into the history."""
        state = self._state
        dry = state.dry
        if self._history is not None:
            self._history.put(state.length, token)
            if self._tables and self._tables.dry and dry:
                dry = self._tables.dry.advance(dry, self._history, state.length)
        self._state = _State(state.length + 1, state.position, dry, state.mu)

    def advance(self, mu: mx.array | None) -> None:
        """Go to the next position, with mirostat's new state if there is one."""
        state = self._state
        self._state = _State(state.length, state.position + 1, state.dry, mu)
        if mu is not None:
            self._mus.append(mu)

    def unwind(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens: history, position and state are as before them.

        Raises:
            EngineError: more than were accepted, or than :data:`UNWIND_LIMIT`.

        """
        if not 0 <= count <= len(self._undo):
            raise EngineError(f"cannot take back {count} sampled tokens; at most {len(self._undo)}")
        for _ in range(count):
            self._state = self._undo.pop()
        if self._mus:
            del self._mus[self._state.position + 1 :]

    def scores(self, logprobs: mx.array, position: int) -> mx.array:
        """The scores ``[V]`` (float32, -inf where filtered) whose largest is the draw at ``position``.

        ``logprobs`` ``[V]`` are those after the first part. Greedy rows score by the logprobs themselves.
        """
        if self.settings.greedy:
            return logprobs.astype(mx.float32)
        mu = self._mus[position] if self._mus else None
        turn = Turn(self.sampling.config.seed or 0, position, mu)
        return spread(score_rows(logprobs[None], self.settings, [turn]), logprobs.shape[-1])[0]

    def _build(self, vocab_size: int) -> _Tables:
        config = self.sampling.config
        misfit = self.misfit(vocab_size)
        if misfit is not None:
            raise EngineError(misfit)
        dry = Dry(config, self.sampling.breakers, vocab_size) if config.dry else None
        ids = bias = None
        if config.logit_bias:
            ids = mx.array(np.array(list(config.logit_bias), dtype=np.uint32))
            bias = mx.array(np.array(list(config.logit_bias.values()), dtype=np.float32))
        self._tables = _Tables(dry, ids, bias)
        if dry:
            state = self._state
            self._state = _State(state.length, state.position, dry.start(self._prompt), state.mu)
        return self._tables


def row_ok(token: int, logprobs: mx.array) -> bool:
    """Whether a collected ``token`` was drawn from logprobs ``[V]`` that have a finite maximum.

    A row that is all masked or holds a NaN always draws token 0, greedy or not, so that nothing has to be read for
    any other token; for token 0 this waits for the logprobs.
    """
    return token != 0 or bool(mx.isfinite(mx.max(logprobs)).item())
