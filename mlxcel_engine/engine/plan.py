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

    The chunks are those of ``mlx_lm.generate.generate_step``: as long as possible, the last one shorter.
    """

    length: int
    chunk: int = DEFAULT_CHUNK

    def __post_init__(self) -> None:
        if self.length < 1 or self.chunk < 1:
            raise EngineError(f"a prefill plan needs length and chunk of 1 or more; got {self.length}, {self.chunk}")

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The chunks of all tokens but the last; empty for a prompt of one token."""
        last = self.length - 1
        return tuple(Piece(start, min(start + self.chunk, last)) for start in range(0, last, self.chunk))

    @property
    def tail(self) -> Piece:
        """The last prompt token."""
        return Piece(self.length - 1, self.length)

    def __str__(self) -> str:
        return "+".join(str(piece) for piece in (*self.pieces, self.tail))
