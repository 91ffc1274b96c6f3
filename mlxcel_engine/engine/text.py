"""The text of one sequence as it is generated, cut at the first stop string. No MLX.

Which stop string is the first: reading the text character by character, the one that is complete first; of several
complete at the same character, the longest. So of two that start alike the shorter wins, the cut does not depend on
how the text is split into tokens, and nothing has to be generated past a complete stop string to decide. It is the
rule of ``mlx_lm.generate.TextStateMachine``, too.
"""

from __future__ import annotations

from typing import Protocol

from mlxcel_engine.errors import EngineError


class Detokenizer(Protocol):
    """What is used of ``mlx_lm.tokenizer_utils.StreamingDetokenizer``; ``tokenizer.detokenizer`` gives a fresh one."""

    def add_token(self, token: int) -> None:
        """Consume one token id."""
        ...

    def finalize(self) -> None:
        """Release the text that waits for more tokens."""
        ...

    @property
    def last_segment(self) -> str:
        """The readable text since the last access."""
        ...


class TextStream:
    """Turns tokens into pieces of text that are final: what was given out is never taken back.

    Text that may be the beginning of a stop string is held back until it is known not to be. The pieces joined are the
    detokenizer's whole text up to, and without, the first stop string. Without stop strings each piece is exactly the
    detokenizer's ``last_segment``. The detokenizer itself holds back an incomplete UTF-8 character (and some a lone
    space); a stop string that ends there is found when it releases it.
    """

    def __init__(self, detokenizer: Detokenizer, stop_strings: tuple[str, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._stops = stop_strings
        self._longest = max(map(len, stop_strings), default=0)
        self._held = ""
        self._finished = False
        self._stop_string: str | None = None

    @property
    def stop_string(self) -> str | None:
        """The stop string at which the text was cut; None as long as none was found."""
        return self._stop_string

    def push(self, token: int) -> str:
        """Return the text that ``token`` makes final.

        Raises:
            EngineError: the stream is finished, by :meth:`finish` or a stop string.

        """
        self._add(token)
        return self._release(self._detokenizer.last_segment)

    def finish(self, token: int | None = None) -> str:
        """Return the rest of the text after a last ``token``, if any; leave an ending EOS out.

        What was held back as a possible stop string is text now. An incomplete UTF-8 character becomes U+FFFD, one for
        each of its maximal valid beginnings, as Python's ``bytes.decode(errors="replace")`` has it. After a stop
        string, and when called again, there is nothing left.
        """
        if token is not None:
            self._add(token)
        if self._finished:
            return ""
        self._detokenizer.finalize()
        text = self._release(self._detokenizer.last_segment)
        if self._stop_string is None:
            text += self._held
        self._finished, self._held = True, ""
        return text

    def _add(self, token: int) -> None:
        if self._finished:
            raise EngineError(f"token {token} came after the end of its text")
        self._detokenizer.add_token(token)

    def _release(self, segment: str) -> str:
        text = self._held + segment
        found = first_stop(text, self._stops)
        if found is not None:
            start, self._stop_string = found
            self._finished, self._held = True, ""
            return text[:start]
        keep = self._may_begin_a_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _may_begin_a_stop(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string begins with."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


def first_stop(text: str, stop_strings: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the first stop string in ``text`` starts, and which it is; None without one."""
    places = [(text.find(stop), stop) for stop in stop_strings]
    found = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
    return min(found)[1:] if found else None
