"""What a rounds file holds: every line parsed, and checked against the header. A line that is wrong is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.base import SCHEMA_VERSION
from mlxcel_engine.records.rounds import RoundsConfig, RoundsHeader, Run
from mlxcel_engine.rounds.arms import is_arm_name
from mlxcel_engine.rounds.measurement import GarbageError, check_lines
from mlxcel_engine.rounds.schedule import MOST_ROUNDS, slots_of

_SHOWN = 200


@dataclass(frozen=True)
class Contents:
    """What a rounds file holds. ``size`` is the length in bytes of its whole lines; beyond it is a torn one."""

    header: RoundsHeader
    runs: tuple[Run, ...]
    size: int
    torn: bool


class _Form(BaseModel):
    """What a header of any version has."""

    kind: Literal["rounds"]
    schema_version: int = Field(alias="schema")


def parse_contents(path: str, data: bytes) -> Contents:
    """Parse the bytes of the file at ``path``; a last line without an end, which a killed run leaves, does not count.

    Raises:
        UsageError: it is no rounds file, is one of another version, or has a line that cannot be; the line is named.

    """
    whole, newline, rest = data.rpartition(b"\n")
    first, *others = whole.split(b"\n")
    header = _header(path, first)
    due = {(slot.round, slot.arm, slot.null) for slot in slots_of(header.config)}
    runs: list[Run] = []
    for number, line in enumerate(others, start=2):
        run = _run(path, number, line, header.config)
        key = (run.round, run.arm, run.null)
        if key not in due:
            raise _refusal(path, number, f"repeats round {run.round + 1} of {run.arm}", "remove one of them")
        due.remove(key)
        runs.append(run)
    return Contents(header, tuple(runs), len(whole) + len(newline), bool(rest))


def _header(path: str, line: bytes) -> RoundsHeader:
    try:
        form = _Form.model_validate_json(line)
    except ValidationError:
        raise UsageError(f"{path} is no rounds file: its first line is no header; give another file") from None
    if form.schema_version != SCHEMA_VERSION:
        versions = f"schema {form.schema_version}, this version reads schema {SCHEMA_VERSION}"
        raise _refusal(path, 1, versions, "take the mlxcel-engine that wrote it, or give another file")
    try:
        header = RoundsHeader.model_validate_json(line)
    except ValidationError as error:
        raise _refusal(path, 1, f"no header of a rounds file ({_why(error)})", "give another file") from None
    problem = _wrong_config(header.config)
    if problem is not None:
        raise _refusal(path, 1, problem, "give another file")
    return header


def _wrong_config(config: RoundsConfig) -> str | None:
    """Why nothing could have been measured with ``config``."""
    names = [arm.name for arm in config.arms]
    if len(names) < 2:
        return f"arms in the header: {len(names)}, a comparison needs two or more"
    for name in names:
        if not is_arm_name(name):
            return f"{name!r} is no name of an arm"
        if names.count(name) > 1:
            return f"the header has {names.count(name)} arms named {name}"
    if not 1 <= config.rounds <= MOST_ROUNDS:
        return f"the header asks for {config.rounds} rounds, from 1 to {MOST_ROUNDS} can be"
    if not config.ctx or min(config.ctx) < 1 or config.max_tokens < 1:
        return f"the header asks for {config.max_tokens} tokens at contexts {config.ctx}, 1 and more can be"
    return None


def _run(path: str, number: int, line: bytes, config: RoundsConfig) -> Run:
    try:
        run = Run.model_validate_json(line)
        problem = _wrong_place(run, config)
        if problem is None:
            check_lines(run.lines, whole=run.status == "ok")
    except ValidationError as error:
        problem = f"no record of a run ({_why(error)})"
    except GarbageError as error:
        problem = f"a run with wrong measurements: {error}"
    if problem is not None:
        raise _refusal(path, number, problem, "remove the line, or start anew")
    return run


def _wrong_place(run: Run, config: RoundsConfig) -> str | None:
    """Why the header has no such run."""
    names = [arm.name for arm in config.arms]
    with_null = names if config.null_every_arm else names[:1]
    if not 0 <= run.round < config.rounds:
        return f"round {run.round + 1}, the header asks for {config.rounds}"
    if run.arm not in names:
        return f"arm {run.arm!r}, the header has {', '.join(names)}"
    if run.null and run.arm not in with_null:
        return f"a null run of {run.arm}, by the header only {names[0]} has one"
    places = len(names) + len(with_null)
    if not 0 <= run.position < places:
        return f"place {run.position + 1} in its round, which has {places}"
    return None


def _why(error: ValidationError) -> str:
    """The first thing that is wrong, and in which field."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def _refusal(path: str, number: int, problem: str, remedy: str) -> UsageError:
    return UsageError(f"{path}, line {number}: {' '.join(problem.split())[:_SHOWN]}; {remedy}")
