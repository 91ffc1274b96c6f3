"""``rounds`` over the real ``bench``, in fresh processes: a tiny checkpoint, and the default one when asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxcel_engine.cli.main import main
from tests.loaded import write_checkpoint


def run_rounds(folder: Path, model: str, ctx: int) -> int:
    size = ["-m", model, "--ctx", str(ctx), "-n", "4", "--rounds", "1"]
    outputs = ["--out", str(folder / "r.jsonl"), "--json", str(folder / "r.json")]
    arms = ["--arm", "a=--path cli", "--arm", "b=--path engine ENV:MLXCEL_SDPA_DETERMINISTIC=0"]
    return main(["rounds", *arms, *size, *outputs])


def check(folder: Path, ctx: int) -> None:
    record = json.loads((folder / "r.json").read_text())
    assert [(run["arm"], run["null"], run["status"]) for run in record["runs"]] == [
        ("a", False, "ok"),
        ("b", False, "ok"),
        ("a", True, "ok"),
    ]
    assert [len(run["lines"][0]["rows"][0]["samples"][0]["arrivals_ms"]) for run in record["runs"]] == [4, 4, 4]
    decode = next(row for row in record["rows"] if (row["arm"], row["metric"]) == ("b", "decode_tok_s"))
    assert (decode["path"], decode["reference_path"], decode["ctx"], decode["n"]) == ("engine", "cli", ctx, 1)
    assert decode["same_tokens"]
    assert record["environment"]["a"]["deterministic"]
    assert not record["environment"]["b"]["deterministic"]
    assert "deterministic differs: a True, b False" in record["notes"]


def test_a_tiny_checkpoint(tmp_path: Path) -> None:
    assert run_rounds(tmp_path, str(write_checkpoint(tmp_path / "tiny")), 16) == 0
    check(tmp_path, 16)


@pytest.mark.checkpoint
def test_the_default_checkpoint(tmp_path: Path) -> None:
    assert run_rounds(tmp_path, "default", 64) == 0
    check(tmp_path, 64)
