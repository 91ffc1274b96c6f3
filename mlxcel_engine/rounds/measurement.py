"""Reads what a run of ``bench --json -`` printed: one bench record a line, of this or another version."""

from __future__ import annotations

import json
import re
from collections import Counter
from io import StringIO
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mlxcel_engine.errors import MlxcelError


class GarbageError(MlxcelError):
    """A run ended well, but what it printed is no measurement."""

    exit_code = 3


MOST_LINES = 1000
MOST_CELLS = 1000  # that a run can have measured, and a line can name
_ALIKE = re.compile(r'^\{[^\n]*"bench"[^\n]*$', re.MULTILINE)
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)

# Nothing that runs is slower or faster than this, and a quotient of two stays finite.
Figure = Annotated[float, Field(ge=1e-9, le=1e12, allow_inf_nan=False)]


class Measurement(BaseModel):
    """The columns of a bench row that are compared; another version may have more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    ctx: int
    batch: int
    tokens: int
    token_hash: str
    decode_tok_s: Figure | None
    ttft_ms: Figure | None

    @property
    def cell(self) -> tuple[str, int, int]:
        """What a run can have once: path, context, batch."""
        return self.path, self.ctx, self.batch


class Unmeasured(BaseModel):
    """A path that gave no row at ``ctx``, and why."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    ctx: int
    reason: str


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore")

    paths: Annotated[list[str], Field(max_length=MOST_CELLS)] = []


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")

    kind: Literal["bench"]
    environment: dict[str, Any]
    config: _Asked = _Asked()
    rows: Annotated[list[Measurement], Field(max_length=MOST_CELLS)]
    unmeasured: Annotated[list[Unmeasured], Field(max_length=MOST_CELLS)] = []


def parse_lines(text: str) -> list[dict[str, Any]]:
    """Parse a run's stdout into bench records.

    Raises:
        GarbageError: a line that is no bench record, a cell measured twice, no measurement at all, or more than
            :data:`MOST_CELLS`.

    """
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(StringIO(text, newline="\n"), start=1):
        if not line.strip():
            continue
        parsed = _parse(line)
        if parsed is None:
            raise GarbageError(f"line {number} of its output is no bench record: {line.strip()[:80]!r}")
        lines.append(parsed)
    _check_cells(lines)
    return lines


def check_lines(lines: list[dict[str, Any]], *, whole: bool) -> None:
    """Check bench records that were parsed once; ``whole``: they are all that a run printed which went well.

    Raises:
        GarbageError: as of :func:`parse_lines`.

    """
    for number, line in enumerate(lines, start=1):
        if not _is_record(line):
            raise GarbageError(f"measurement {number} is no bench record")
    if whole:
        _check_cells(lines)


def _check_cells(lines: list[dict[str, Any]]) -> None:
    cells = [measurement.cell for measurement in measurements(lines)]
    if not cells:
        raise GarbageError("it printed no measurement" + _why_not(lines))
    if len(cells) > MOST_CELLS:
        raise GarbageError(f"it printed {len(cells)} measurements, {MOST_CELLS} can be")
    for (path, ctx, batch), times in Counter(cells).items():
        if times > 1:
            raise GarbageError(f"it measured {path} at {ctx} tokens, batch {batch}, twice")


def parse_what_is_there(text: str) -> list[dict[str, Any]]:
    """Parse the bench records that a run printed before it failed; whatever else it printed is passed over.

    Of the lines that look like one, the first :data:`MOST_LINES` are read, up to :data:`MOST_CELLS` measurements.
    """
    lines: list[dict[str, Any]] = []
    left = MOST_CELLS
    for match in islice(_ALIKE.finditer(text), MOST_LINES):
        parsed = _parse(match.group())
        if parsed is not None and len(parsed["rows"]) <= left:
            lines.append(parsed)
            left -= len(parsed["rows"])
    return lines


def _parse(line: str) -> dict[str, Any] | None:
    try:
        parsed: dict[str, Any] = json.loads(line)
        _ANYTHING.validate_json(_ANYTHING.dump_json([[[[parsed]]]]))  # as deep as a record has it
    except (ValueError, RecursionError):  # half a surrogate or deep nesting could not be written down and read back
        return None
    return parsed if _is_record(parsed) else None


def _is_record(parsed: object) -> bool:
    try:
        _Line.model_validate(parsed)
    except ValueError:  # pydantic's error is one
        return False
    return True


def _why_not(lines: list[dict[str, Any]]) -> str:
    """What the lines say of paths that could not run."""
    reasons = [f"{one.path}: {one.reason}" for one in unmeasured(lines)]
    return f" ({'; '.join(reasons)})" if reasons else ""


def measurements(lines: list[dict[str, Any]]) -> list[Measurement]:
    """The rows of parsed lines."""
    return [Measurement.model_validate(row) for line in lines for row in line["rows"]]


def unmeasured(lines: list[dict[str, Any]]) -> list[Unmeasured]:
    """The paths that parsed lines name as not measured."""
    return [Unmeasured.model_validate(one) for line in lines for one in line.get("unmeasured", ())]


def asked_paths(lines: list[dict[str, Any]]) -> set[str]:
    """The paths that a run was asked for, as far as its parsed lines name them."""
    named = {path for line in lines for path in line.get("config", {}).get("paths", ())}
    return named | {one.path for one in measurements(lines)} | {one.path for one in unmeasured(lines)}
