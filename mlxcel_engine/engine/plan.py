"""How a prompt is prefilled. Pure arithmetic, the same partition for the same input on every path."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel_engine.errors import EngineError

DEFAULT_CHUNK = 2048


@dataclass(frozen=True)
class Piece:
    """Prompt positions ``[start, stop)``."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"[{self.start},{self.stop})"


@dataclass(frozen=True)
class PrefillPlan:
    """``pieces`` go through prefill in order; ``tail``, the last token, is fed by the first decode step.

    Without a tail (``has_tail``) the pieces hold the whole prompt, and the first step draws from what the last of them
    gave. The first ``adopted`` tokens came from a kept prefix. At ``boundary`` a piece ends, so that what lies before
    it can be kept. The chunks between are those of ``mlx_lm.generate.generate_step``: as long as possible, the last one
    shorter.
    """

    length: int
    chunk: int = DEFAULT_CHUNK
    adopted: int = 0
    boundary: int | None = None
    has_tail: bool = True

    def __post_init__(self) -> None:
        if self.length < 1 or self.chunk < 1:
            raise EngineError(f"a prefill plan needs length and chunk of 1 or more; got {self.length}, {self.chunk}")
        if not 0 <= self.adopted < self.length:
            raise EngineError(f"{self.adopted} tokens adopted for a prompt of {self.length}; at most one less than all")
        if self.boundary is not None and not 0 <= self.boundary < self.length:
            raise EngineError(f"a boundary at {self.boundary} is not within a prompt of {self.length}")

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The chunks of all tokens that were not adopted, but for the tail; none may be left."""
        cut = self.adopted if self.boundary is None else max(self.boundary, self.adopted)
        return (*self._chunks(self.adopted, cut), *self._chunks(cut, self.tail.start))

    @property
    def tail(self) -> Piece:
        """The last prompt token, or nothing."""
        return Piece(self.length - self.has_tail, self.length)

    def _chunks(self, start: int, stop: int) -> tuple[Piece, ...]:
        return tuple(Piece(first, min(first + self.chunk, stop)) for first in range(start, stop, self.chunk))

    def __str__(self) -> str:
        return "+".join(str(piece) for piece in (*self.pieces, *[self.tail] * self.has_tail))
