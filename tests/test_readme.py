"""The README's library example runs as it stands, on a tiny checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.loaded import write_checkpoint

if TYPE_CHECKING:
    import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_library_example_prints_16_tokens_for_each_of_two_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    folder = write_checkpoint(tmp_path / "tiny")
    exec(compile(example.replace("path/to/model", str(folder)), "README.md", "exec"), {})
    rows = [line.split(" ")[0] for line in capsys.readouterr().out.split("\n") if re.match(r"[01] ", line)]
    assert rows == ["0", "1"] * 16
