"""Reads what a run of ``bench --json -`` printed: one bench record a line, of this or another version."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mlxcel_engine.errors import MlxcelError


class GarbageError(MlxcelError):
    """A run ended well, but what it printed is no measurement."""

    exit_code = 3


class Measurement(BaseModel):
    """The columns of a bench row that are compared; another version may have more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    ctx: int
    batch: int
    tokens: int
    token_hash: str
    decode_tok_s: float | None
    ttft_ms: float | None

    @property
    def cell(self) -> tuple[str, int, int]:
        """What a run can have once: path, context, batch."""
        return self.path, self.ctx, self.batch


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")

    kind: Literal["bench"]
    environment: dict[str, Any]
    rows: list[Measurement]
    unmeasured: list[dict[str, Any]] = []


def parse_lines(text: str) -> list[dict[str, Any]]:
    """Parse a run's stdout into bench records.

    Raises:
        GarbageError: a line that is no bench record, a cell measured twice, or no measurement at all.

    """
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
            _Line.model_validate(parsed)
        except (ValueError, ValidationError):
            raise GarbageError(f"line {number} of its output is no bench record: {line.strip()[:80]!r}") from None
        lines.append(parsed)
    cells = [measurement.cell for measurement in measurements(lines)]
    if not cells:
        raise GarbageError("it printed no measurement" + _why_not(lines))
    for path, ctx, batch in cells:
        if cells.count((path, ctx, batch)) > 1:
            raise GarbageError(f"it measured {path} at {ctx} tokens, batch {batch}, twice")
    return lines


def _why_not(lines: list[dict[str, Any]]) -> str:
    """What the lines say of paths that could not run."""
    reasons = [f"{one.get('path')}: {one.get('reason')}" for line in lines for one in line.get("unmeasured", ())]
    return f" ({'; '.join(reasons)})" if reasons else ""


def measurements(lines: list[dict[str, Any]]) -> list[Measurement]:
    """The rows of parsed lines."""
    return [Measurement.model_validate(row) for line in lines for row in line["rows"]]
