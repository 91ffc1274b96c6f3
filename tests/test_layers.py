"""Imports point one way, and what has to be testable alone imports no MLX."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "mlxcel_engine"

# What each part may import of the package; everything may use the leaves.
LEAVES = {"errors", "version", "preload", "printable"}
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "device": set(),
    "environment": {"device", "records"},
    "engine": set(),
    "loader": {"records"},
    "scheduler": {"engine", "loader"},
    "prompts": set(),
    "prompt_sets": {"prompts"},
    "paths": {"engine", "scheduler", "loader", "prompts", "records"},
    "parity": {"engine", "paths", "loader", "prompts", "records"},
    "bench": {"device", "engine", "scheduler", "paths", "loader", "prompts", "records"},
    "rounds": {"records"},
    "report": {"records"},
    "cli": {
        "device",
        "engine",
        "environment",
        "loader",
        "prompts",
        "prompt_sets",
        "paths",
        "parity",
        "bench",
        "rounds",
        "records",
        "report",
    },
}
WITHOUT_MLX = [
    "mlxcel_engine.engine.plan",
    "mlxcel_engine.engine.shapes",
    "mlxcel_engine.engine.config",
    "mlxcel_engine.engine.kv.blocks",
    "mlxcel_engine.engine.finish",
    "mlxcel_engine.engine.progress",
    "mlxcel_engine.engine.text",
    "mlxcel_engine.engine.sampling",
    "mlxcel_engine.engine.sampling.config",
    "mlxcel_engine.engine.sampling.resolved",
    "mlxcel_engine.engine.sampling.keys",
    "mlxcel_engine.scheduler",
    "mlxcel_engine.scheduler.config",
    "mlxcel_engine.scheduler.errors",
    "mlxcel_engine.scheduler.handle",
    "mlxcel_engine.scheduler.inbox",
    "mlxcel_engine.scheduler.metrics",
    "mlxcel_engine.scheduler.policy",
    "mlxcel_engine.scheduler.prompt_cache",
    "mlxcel_engine.scheduler.radix",
    "mlxcel_engine.scheduler.request",
    "mlxcel_engine.scheduler.ticket",
    "mlxcel_engine.parity.against",
    "mlxcel_engine.parity.cases",
    "mlxcel_engine.parity.compare",
    "mlxcel_engine.parity.forced",
    "mlxcel_engine.parity.gate",
    "mlxcel_engine.parity.pairs",
    "mlxcel_engine.parity.stream",
    "mlxcel_engine.bench.timing",
    "mlxcel_engine.bench.summary",
    "mlxcel_engine.bench.plan",
    "mlxcel_engine.bench.run",
    "mlxcel_engine.rounds.contents",
    "mlxcel_engine.rounds.statistics",
    "mlxcel_engine.rounds.summary",
    "mlxcel_engine.rounds.run",
    "mlxcel_engine.rounds.host",
    "mlxcel_engine.rounds.gate",
    "mlxcel_engine.report.rounds_table",
    "mlxcel_engine.report.rounds_plot",
    "mlxcel_engine.report.svg",
    "mlxcel_engine.report.parity_svg",
    "mlxcel_engine.report.parity_table",
    "mlxcel_engine.cli.main",
    "mlxcel_engine.__main__",
    "mlxcel_engine.printable",
    "mlxcel_engine.loader.cache",
    "mlxcel_engine.loader.policy",
    "mlxcel_engine.loader.source",
    "mlxcel_engine.prompts",
    "mlxcel_engine.prompt_sets",
]


def imported_parts(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update(
                [node.module] if node.module != "mlxcel_engine" else [f"{node.module}.{a.name}" for a in node.names]
            )
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("mlxcel_engine.")}


def violations(part: str, files: list[Path]) -> list[str]:
    allowed = ALLOWED[part] | LEAVES | {part}
    return [f"{file.name} imports {name}" for file in files for name in sorted(imported_parts(file) - allowed)]


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_point_one_way(part: str) -> None:
    folder = ROOT / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{part}.py"]
    assert files
    assert violations(part, files) == []


def test_every_part_of_the_package_has_its_direction() -> None:
    found = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert found - {"__init__", "__main__"} == set(ALLOWED) | LEAVES


def test_a_wrong_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    from mlxcel_engine.cli.main import main\n")
    assert violations("engine", [tmp_path / "bad.py"]) == ["bad.py imports cli"]


HEAVY = """
import importlib, sys
for module in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(module)
    found = sorted({name.split(".")[0] for name in set(sys.modules) - before} & {"mlx", "mlx_lm", "transformers"})
    if found:
        print(module, *found)
"""


def heavy_imports(*modules: str) -> str:
    """Import ``modules`` one after another in a new process: the first ones that bring MLX, and what they bring."""
    command = [sys.executable, "-c", HEAVY, *modules]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_tested_alone_imports_no_mlx() -> None:
    assert heavy_imports(*WITHOUT_MLX) == ""


def test_an_import_of_mlx_is_found() -> None:
    found = heavy_imports("mlxcel_engine.errors", "mlxcel_engine.device", "mlxcel_engine.prompts")
    assert found.splitlines() == ["mlxcel_engine.device mlx"]
