"""What ``parity`` shows in the end: tables, a picture, the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.cli.setup import say, table_console, warn
from mlxcel_engine.errors import RunError

if TYPE_CHECKING:
    from mlxcel_engine.records.parity import ParityRecord
    from mlxcel_engine.report.output import OutputFile


def record_json(record: ParityRecord) -> str:
    """The record as a file has it."""
    return record.model_dump_json(indent=1) + "\n"


def show(record: ParityRecord, svg: OutputFile, *, to_stderr: bool) -> None:
    """Print the tables, and draw them where that was asked for."""
    from mlxcel_engine.report.parity_svg import parity_svg
    from mlxcel_engine.report.parity_table import print_parity

    if svg.wanted:
        svg.write(parity_svg(record))
    print_parity(record, table_console(to_stderr=to_stderr))


def gate(record: ParityRecord, *, expect_identical: bool, allow_near_tie: bool) -> int:
    """Say on stderr which rows fail the gate; returns the exit code. Without the gate only say if nothing was there."""
    from mlxcel_engine.parity.gate import judge

    if not expect_identical:
        if not record.rows:
            warn("nothing was compared; choose at least two paths")
        return 0
    if not record.complete:
        say("gate: the record is incomplete; run it to its end")
        return RunError.exit_code
    result = judge(record.rows, allow_near_tie=allow_near_tie, invariant=record.config.invariant is not None)
    for failure in result.failures:
        say(f"gate: {failure}")
    if not result.compared:
        say("gate: no pair was compared; choose at least two paths that run this model")
    elif not result.failures:
        say(f"gate: passed, {result.compared} pairs")
    return result.exit_code
