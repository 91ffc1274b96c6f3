"""The page on mlx-lm's own loops says what its data say, from wherever it is made."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mlx_lm_parity import render

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmark_results" / "mlx-lm-parity"


def test_the_page_is_that_of_its_data_and_names_no_place_of_this_machine(tmp_path: Path) -> None:
    assert render(FOLDER, "default") == (FOLDER / "README.md").read_text()
    assert str(tmp_path) not in render(tmp_path, "default")
