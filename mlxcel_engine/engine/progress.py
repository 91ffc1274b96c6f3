"""What one sequence has generated so far: its tokens, its text, and whether it has ended. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.engine.finish import Finish, StopRules, finish_step
from mlxcel_engine.engine.text import TextStream
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from mlxcel_engine.engine.text import Detokenizer


@dataclass(frozen=True)
class RowStep:
    """The text that a token made final, and why the sequence ends with it, if it does."""

    text: str
    finish: Finish | None


class RowProgress:
    """One per sequence: told each token, it says what to give out and when to stop.

    Every token counts and stands in ``tokens``, the ending EOS and the one that completes a stop string too; of these
    two only the text before them is given out. Without a ``detokenizer`` the text is empty.

    Raises:
        EngineError: the rules have stop strings and there is no detokenizer to find them with.

    """

    def __init__(self, rules: StopRules, prompt_tokens: int, detokenizer: Detokenizer | None = None) -> None:
        if rules.stop_strings and detokenizer is None:
            raise EngineError(f"stop strings {rules.stop_strings} need a detokenizer to be found; give one")
        self.tokens: list[int] = []
        self._rules = rules
        self._prompt_tokens = prompt_tokens
        self._text = TextStream(detokenizer, rules.stop_strings) if detokenizer is not None else None

    def advance(self, token: int) -> RowStep:
        """Take the next token of the sequence."""
        self.tokens.append(token)
        finish = finish_step(self.tokens, self._prompt_tokens, self._rules)
        if self._text is None:
            return RowStep("", finish)
        if finish is None:
            piece = self._text.push(token)
        else:  # a limit is known before the text is: the last token and the flush are one segment, as in mlx-lm
            piece = self._text.finish(None if finish.detail == "eos" else token)
        if self._text.stop_string is not None:
            finish = finish_step(self.tokens, self._prompt_tokens, self._rules, self._text.stop_string)
        return RowStep(piece, finish)
