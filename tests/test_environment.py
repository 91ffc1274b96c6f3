"""The commit of a record: which one, and whether the package differs from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mlxcel_engine.environment import project_commit


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    done = subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_only_a_changed_package_is_dirty(tmp_path: Path) -> None:
    assert project_commit(tmp_path) is None
    (tmp_path / "mlxcel_engine").mkdir()
    module, results = tmp_path / "mlxcel_engine" / "a.py", tmp_path / "results.md"
    module.write_text("a = 1\n")
    results.write_text("1\n")
    git(tmp_path, "init", "--quiet")
    assert project_commit(tmp_path) is None
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=x")
    commit = git(tmp_path, "rev-parse", "HEAD")
    results.write_text("2\n")
    assert project_commit(tmp_path) == commit
    module.write_text("a = 2\n")
    assert project_commit(tmp_path) == f"{commit}-dirty"
