"""The README's library example runs as it stands, on a tiny checkpoint; its picture is what the tool draws."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.loader.default_checkpoint import SMOLLM2
from mlxcel_engine.records.parity import ParityRecord
from mlxcel_engine.report.parity_svg import parity_svg
from tests.loaded import write_checkpoint
from tests.tiny import parameters

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_library_example_prints_16_tokens_for_each_of_two_rows_in_float32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    folder = write_checkpoint(tmp_path / "tiny")
    stored = mx.load(str(folder / "model.safetensors"))
    assert isinstance(stored, dict)
    halves = {name: weight.astype(mx.float16) for name, weight in stored.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), halves, {"format": "mlx"})
    names: dict[str, Any] = {}
    exec(compile(example.replace("path/to/model", str(folder)), "README.md", "exec"), names)
    rows = [line.split(" ")[0] for line in capsys.readouterr().out.split("\n") if re.match(r"[01] ", line)]
    assert rows == ["0", "1"] * 16
    cast = {weight.dtype for weight in parameters(names["model"]).values()}
    assert cast == {mx.float32 if mx.default_device() == mx.cpu else mx.float16}


def test_it_names_the_folder_of_the_default_checkpoint() -> None:
    assert f"`{SMOLLM2.entry}`" in README


def test_the_picture_is_that_of_the_record_beside_it() -> None:
    record = ParityRecord.model_validate_json((ROOT / "docs" / "parity.json").read_bytes())
    drawn, kept = parity_svg(record), (ROOT / "docs" / "parity.svg").read_text()
    assert record.complete
    assert texts(drawn) == texts(kept)
    changed = record.model_copy(update={"rows": record.rows[1:]})
    assert texts(parity_svg(changed)) != texts(kept)


def texts(svg: str) -> list[str]:
    """What a picture says; how it is drawn is rich's matter, and differs between its versions."""
    return re.findall(r">([^<>]+)</text>", svg)
