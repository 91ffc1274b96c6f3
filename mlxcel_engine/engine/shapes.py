"""The shapes of the invariant mode: what makes a request's logits independent of everything around it. No MLX.

A row's bits depend on the shape of the products that it is part of, and not on the other rows in them, nor, but for
:data:`PLACE_DEPENDENT`, on its place among them. So whoever keeps the shapes of a request's forwards a function of the
request alone, keeps its bits. ADR 0003 has the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from mlxcel_engine.engine.plan import PrefillPlan
from mlxcel_engine.errors import EngineError
from mlxcel_engine.preload import PRELOAD

Row = TypeVar("Row")
LARGEST_WIDTH = 64
PLACE_DEPENDENT = frozenset({5, 6, 7, 9, 10, 11})
"""Rows of a product whose last ones get other bits than the first, with MKL outside its strict mode."""


@dataclass(frozen=True)
class FixedShapes:
    """Every decode forward has ``width`` rows, padding in the place of absent ones.

    Prompts go through in pieces of ``chunk`` tokens that begin at multiples of it; the last piece is what is left of
    the prompt. A prefix is adopted only at such a multiple.
    """

    width: int
    chunk: int

    def __post_init__(self) -> None:
        if type(self.width) is not int or type(self.chunk) is not int:
            raise EngineError(f"invariant shapes {self}; give whole numbers")
        if not 1 <= self.width <= LARGEST_WIDTH:
            raise EngineError(f"an invariant width of {self.width} rows; give 1 to {LARGEST_WIDTH}")
        if self.chunk < 1:
            raise EngineError(f"an invariant chunk of {self.chunk} tokens; give 1 or more")

    def groups(self, rows: list[Row]) -> list[list[Row]]:
        """Divide the rows of a step into those that go through the model together."""
        return [rows[start : start + self.width] for start in range(0, len(rows), self.width)]

    def whole(self, tokens: int) -> int:
        """The largest number of tokens up to ``tokens`` that can be adopted."""
        return tokens - tokens % self.chunk

    def plan(self, length: int, adopted: int, boundary: int | None) -> PrefillPlan:
        """How a prompt of ``length`` tokens is prefilled; what precedes ``boundary`` is to be kept.

        Raises:
            EngineError: ``adopted`` or ``boundary`` is no multiple of the chunk; or as :class:`PrefillPlan`.

        """
        for name, place in (("a prefix of", adopted), ("a boundary at", boundary or 0)):
            if place % self.chunk:
                raise EngineError(f"{name} {place} tokens is not a multiple of the invariant chunk {self.chunk}")
        return PrefillPlan(length, self.chunk, adopted, boundary, has_tail=False)

    def __str__(self) -> str:
        return f"{self.width},{self.chunk}"


SHAPES = {"cpu": FixedShapes(2, 256), "gpu": FixedShapes(8, 256)}
"""What ``invariant=True`` means on each device: on a CPU by measurement (docs/determinism.md), on a GPU not yet."""


def resolve_shapes(invariant: FixedShapes | bool | None, device: str) -> FixedShapes | None:
    """The shapes that :attr:`EngineConfig.invariant` asks for on ``device`` (``cpu`` or ``gpu``); None without any.

    Raises:
        EngineError: a width at which the place of a row among the others changes its bits.

    """
    if invariant is None:
        invariant = PRELOAD.invariant
    shapes = SHAPES[device] if invariant is True else invariant or None
    strays = device == "cpu" and PRELOAD.blas == "mkl" and not PRELOAD.deterministic
    if shapes is not None and strays and shapes.width in PLACE_DEPENDENT:
        asked = f"an invariant width of {shapes.width}: MKL computes the last of so many rows in another way"
        raise EngineError(f"{asked}; give 1 to 4, 8, or 12 to {LARGEST_WIDTH}, or set MLXCEL_SDPA_DETERMINISTIC=1")
    return shapes
