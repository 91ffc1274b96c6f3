"""The tables of a parity record as a picture. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.report.parity_table import print_parity
from mlxcel_engine.report.svg import terminal_svg

if TYPE_CHECKING:
    from mlxcel_engine.records.parity import ParityRecord

_WIDTH = 140  # columns


def parity_svg(record: ParityRecord) -> str:
    """The SVG document."""
    return terminal_svg(lambda console: print_parity(record, console), "mlxcel-engine parity", _WIDTH)
