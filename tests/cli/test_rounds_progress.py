"""What is shown while rounds run costs the measured run next to nothing."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from mlxcel_engine.cli import rounds_progress
from mlxcel_engine.cli.rounds_progress import RoundsProgress
from mlxcel_engine.rounds.measurement import Measurement, measurements
from mlxcel_engine.rounds.schedule import slots_of
from tests.rounds.fakes import config, run


def test_a_screen_is_drawn_once_a_second_from_what_each_run_left(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=100)
    progress = RoundsProgress(console, slots_of(config("a", "b")), [run(0, "a", 100.0)])
    read = list[int]()

    def counted(lines: list[dict[str, Any]]) -> list[Measurement]:
        read.append(len(lines))
        return measurements(lines)

    monkeypatch.setattr(rounds_progress, "measurements", counted)
    progress.finished(run(0, "b", 110.0))
    for _ in range(3):
        with console.capture() as captured:
            console.print(progress._screen())
    assert read == [1]
    for said in ("cli at 256: 100.00 tok/s", "cli at 256: 110.00 tok/s", "2 of 15 runs"):
        assert said in captured.get()
    assert progress._live is not None
    assert progress._live.refresh_per_second == 1
