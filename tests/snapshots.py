"""Expected outputs, kept as files; MLXCEL_UPDATE_SNAPSHOTS=1 writes them anew, to be read in a diff."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "expected"


def check_snapshot(name: str, text: str) -> None:
    """Compare ``text`` with the file of that name, to the letter."""
    file = FOLDER / name
    if os.environ.get("MLXCEL_UPDATE_SNAPSHOTS") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
