"""Writes docs/records.md from the record models: ``python -m tests.records_page --write docs/records.md``."""

from __future__ import annotations

import argparse
import inspect
import sys
import types
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from mlxcel_engine.records.base import Record
from mlxcel_engine.records.bench import BenchRecord
from mlxcel_engine.records.parity import ParityRecord
from mlxcel_engine.records.rounds import RoundsHeader, RoundsRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo

ROOTS: dict[str, tuple[type[Record], ...]] = {
    "parity": (ParityRecord,),
    "bench": (BenchRecord,),
    "rounds": (RoundsRecord, RoundsHeader),
}
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", datetime: "time", Any: "anything"}
_INTRO = """
# Records

What `--json` writes, field by field. Written by `make docs` from the models in `mlxcel_engine/records/`, which read a
record back and refuse a field that they do not know. Names are stable.

A name ends in its unit: `_ms`, `_s`, `_bytes`, `_pct`, `_tok_s` (tokens a second), `_gb_s` (10^9 bytes a second). None
is `null`. A time is ISO 8601, in UTC. Infinite numbers and NaN are the strings `Infinity`, `-Infinity` and `NaN`.
"""


def records_under(root: type[Record]) -> list[type[Record]]:
    """``root`` and every record in it, each once, in the order of the fields."""
    found = [root]
    for field in root.model_fields.values():
        for inner in _records_in(field.annotation):
            found += [record for record in records_under(inner) if record not in found]
    return found


def type_text(annotation: Any) -> str:
    """Return a type as JSON has it, in words; records link to their sections."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if one is types.NoneType else type_text(one) for one in arguments)
    if origin is list:
        inner = type_text(arguments[0])
        return f"list of ({inner})" if inner.endswith(" or null") else f"list of {inner}"
    if origin is tuple:
        return f"[{', '.join(map(type_text, arguments))}]"
    if origin is dict:
        return f"object of {type_text(arguments[1])}"
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    return f"[{annotation.__name__}](#{annotation.__name__.lower()})"


def section(record: type[Record]) -> str:
    """Return the section of one record: what it is, and a line a field."""
    lines = [f"### {record.__name__}", "", _markdown(inspect.getdoc(record) or ""), ""]
    lines += ["| field | type | what it is |", "|---|---|---|"]
    lines += [_line(name, field) for name, field in record.model_fields.items()]
    return "\n".join(lines)


def render() -> str:
    """Return the whole page."""
    under = {kind: [one for root in roots for one in records_under(root)] for kind, roots in ROOTS.items()}
    kinds_of = {record: [kind for kind in under if record in under[kind]] for each in under.values() for record in each}
    parts = [_INTRO.strip()]
    for kind in ROOTS:
        module = sys.modules[ROOTS[kind][0].__module__]
        own = dict.fromkeys(record for record in under[kind] if kinds_of[record] == [kind])
        parts += [f"## {kind}", _markdown(module.__doc__ or ""), *map(section, own)]
    shared = [record for record, kinds in kinds_of.items() if len(kinds) > 1]
    parts += ["## In several", *map(section, shared)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _records_in(annotation: Any) -> list[type[Record]]:
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        return [annotation]
    return [record for inner in get_args(annotation) for record in _records_in(inner)]


def _line(name: str, field: FieldInfo) -> str:
    if not field.description:
        raise ValueError(f"the field {name} has no description; write a string under it")
    return f"| `{field.alias or name}` | {type_text(field.annotation)} | {_markdown(field.description)} |"


def _markdown(text: str) -> str:
    return text.strip().replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    file: Path | None = parser.parse_args(arguments).write
    if file is None:
        print(render(), end="")
    else:
        file.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
