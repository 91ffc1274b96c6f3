"""``make verify-regression`` on small repositories whose package is a fake bench: equal, slower, broken, no base."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.regression import main
from tests.rounds.fakes import FakeHost, state

FAKE = (Path(__file__).parent / "rounds" / "fake_bench.py").read_text()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    quiet = FakeHost()
    monkeypatch.setattr("mlxcel_engine.cli.rounds.ThisHost", lambda: quiet)
    return quiet


@pytest.fixture
def repository(tmp_path: Path, host: FakeHost) -> Path:
    """A checkout with one commit, in which the package is the fake bench at 100 tok/s."""
    root = tmp_path / "checkout"
    (root / "mlxcel_engine").mkdir(parents=True)
    (root / "mlxcel_engine" / "__init__.py").write_text("")
    write_speed(root, 100)
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root)
    return root


def write_speed(root: Path, speed: int) -> None:
    text = FAKE.replace('"FAKE_SPEED", "100"', f'"FAKE_SPEED", "{speed}"')
    assert str(speed) in text
    (root / "mlxcel_engine" / "__main__.py").write_text(text)


def git(root: Path, *words: str) -> None:
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    subprocess.run(["git", "-C", str(root), *words], check=True, env={**os.environ, **who})


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=x")


def test_an_unchanged_tree_passes(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kept.jsonl"
    assert main(["--base", "main", "--out", str(out)], repository) == 0
    assert "gate: passed, 1 comparisons" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 16


def test_a_slower_tree_fails_committed_or_not(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_speed(repository, 90)
    assert main(["--base", "main"], repository) == 1
    assert "gate: tree, server at 256 tokens: -" in capsys.readouterr().err
    commit(repository)
    assert main(["--base", "main~1"], repository) == 1
    assert main(["--base", "main"], repository) == 0


def test_a_module_that_is_not_committed_yet_is_part_of_the_tree_and_a_deleted_one_is_not(repository: Path) -> None:
    package = repository / "mlxcel_engine"
    (package / "speed.py").write_text("import os\nos.environ['FAKE_SPEED'] = '80'\n")
    (package / "__init__.py").write_text("import mlxcel_engine.speed\n")
    assert main(["--base", "main"], repository) == 1
    commit(repository)
    (package / "speed.py").unlink()
    (package / "__init__.py").write_text("")
    assert main(["--base", "main"], repository) == 0


def test_nothing_measured_is_3(repository: Path, host: FakeHost, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "mlxcel_engine" / "__main__.py").write_text("raise SystemExit(3)\n")
    assert main(["--base", "main", "--", "--rounds", "1"], repository) == 3
    write_speed(repository, 100)
    host.before = [state(others_cpu=1.0)]
    assert main(["--base", "main", "--", "--rounds", "1", "--gate-timeout", "0.001"], repository) == 3
    assert "the host was not quiet" in capsys.readouterr().err


def test_a_base_that_git_does_not_know_is_one_line(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base", "no-such"], repository) == 2
    assert "error: BASE=no-such: git knows no such commit" in capsys.readouterr().err
    git(repository, "rm", "--quiet", "-r", "mlxcel_engine")
    commit(repository)
    assert main(["--base", "main"], repository) == 2
    assert "that commit has no mlxcel_engine" in capsys.readouterr().err
