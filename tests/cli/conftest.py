from __future__ import annotations

from pathlib import Path

import pytest

from tests.loaded import write_checkpoint
from tests.rounds.fakes import FakeHost, install_fake_bench


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama"))


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """The word of an arm that runs a fake bench."""
    return f"PYTHON:{install_fake_bench(tmp_path)}"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """``rounds`` looks at a fake host; at a quiet one, unless a test makes it busy."""
    quiet = FakeHost()
    monkeypatch.setattr("mlxcel_engine.cli.rounds.ThisHost", lambda: quiet)
    return quiet
