"""The comparisons of a rounds record as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from mlxcel_engine.records.rounds import Comparison

if TYPE_CHECKING:
    from mlxcel_engine.records.rounds import RoundsRecord

COLUMNS = tuple(name for name in Comparison.model_fields if name != "deltas_pct")


def rounds_csv(record: RoundsRecord) -> str:
    """One line a comparison; None is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in record.rows)
    return text.getvalue()
