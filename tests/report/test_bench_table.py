"""The table on terminals of several widths: whole numbers, every column once."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from mlxcel_engine.records.bench import BenchRecord, Unmeasured
from mlxcel_engine.report.bench_table import print_bench

EXPECTED = Path(__file__).parent.parent / "expected" / "bench.json"
FIGURES = ("250.0", "400.0", "20.00", "1.000", "40.5", "50.00", "58.50", "104.0 MB", "1.50 GB", "0.952", "BatchKVCache")


def shown(width: int) -> str:
    record = BenchRecord.model_validate_json(EXPECTED.read_text())
    missing = Unmeasured(path="server-invariant", ctx=100, reason="RunError: " + "no room " * 12, failed=True)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=width, highlight=False)
    print_bench(record.model_copy(update={"unmeasured": [missing]}), console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_terminal_cuts_no_figure(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    for figure in FIGURES:
        assert figure in text
    for column in ("TTFT ms", "prefill tok/s", "decode tok/s", "to cli", "% of limit", "p95 ms", "paged calls"):
        assert text.count(column) == 2  # once a context


def test_a_wide_terminal_has_one_table_a_context() -> None:
    assert [shown(width).count("storage") for width in (80, 200)] == [2, 2]
    assert sum(line.split()[:1] == ["path"] for line in shown(200).splitlines()) == 2
    assert sum(line.split()[:1] == ["path"] for line in shown(80).splitlines()) > 2
