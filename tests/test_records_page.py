"""docs/records.md is what the record models say, and every record and field is in it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import mlxcel_engine.records
from mlxcel_engine.records.base import Record
from mlxcel_engine.records.rounds import Comparison, Run
from tests.records_page import ROOTS, main, records_under, render, section

PAGE = Path(__file__).parent.parent / "docs" / "records.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == render(), "make docs writes it anew"


def test_every_record_stands_in_it() -> None:
    reached = {record for roots in ROOTS.values() for root in roots for record in records_under(root)}
    for module in pkgutil.iter_modules(mlxcel_engine.records.__path__):
        found = vars(importlib.import_module(f"mlxcel_engine.records.{module.name}")).values()
        records = {one for one in found if isinstance(one, type) and issubclass(one, Record)} - {Record}
        assert records <= reached


def test_a_field_without_a_description_is_refused() -> None:
    class Silent(Record):
        said: int
        """Something."""
        unsaid: int

    with pytest.raises(ValueError, match="the field unsaid has no description"):
        section(Silent)


def test_types_are_those_of_json() -> None:
    lines = section(Run).splitlines()
    for line in (
        "| `round` | integer | Counted from 0. |",
        "| `status` | `ok`, `crashed`, `timeout`, `garbage` | "
        "How it ended; `garbage`: it went well and printed no bench record, or printed without end. |",
        "| `before` | [HostState](#hoststate) | The host just before it. |",
    ):
        assert line in lines
    assert any(
        line.startswith("| `deltas_pct` | list of (number or null) | ") for line in section(Comparison).splitlines()
    )
    assert any(line.startswith("| `exit_code` | integer or null | ") for line in lines)
    assert any(line.startswith("| `lines` | list of object of anything | ") for line in lines)


def test_it_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--write", str(tmp_path / "page.md")]) == 0
    assert capsys.readouterr().out == (tmp_path / "page.md").read_text() == render()
