from __future__ import annotations

from pathlib import Path

import pytest

from mlxcel_engine.bench import probe
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


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth probe reads 4 MiB for no longer than it must; its own test reads more than the caches hold."""
    monkeypatch.setattr(probe, "last_level_cache", lambda: None)
    monkeypatch.setattr(probe, "_BUFFER", dict.fromkeys(probe._BUFFER, 2**22))
    monkeypatch.setattr(probe, "_SECONDS", 0.0)
