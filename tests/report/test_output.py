"""Claimed first, replaced whole, given back when nothing came."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.errors import UsageError
from mlxcel_engine.report.output import OutputFile

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_file_is_claimed_at_once_and_holds_the_last_write(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    with OutputFile(str(file), force=False) as output:
        assert file.exists()
        with pytest.raises(UsageError, match="in use by another run"):
            OutputFile(str(file), force=False)
        for text in ("one", "two"):
            output.write(text)
            assert file.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_an_empty_file_that_a_killed_run_left_is_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    code = "import os, sys; from mlxcel_engine.report.output import OutputFile; OutputFile(sys.argv[1], force=False); "
    subprocess.run([sys.executable, "-c", code + "os._exit(9)", str(file)], check=False)
    assert file.exists()
    with OutputFile(str(file), force=False) as output:
        with pytest.raises(UsageError, match="is in use"):
            OutputFile(str(file), force=False)
        output.write("one")
    assert file.read_text() == "one"
    with pytest.raises(UsageError, match="exists"):
        OutputFile(str(file), force=False)


def test_nothing_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), OutputFile(str(tmp_path / "r.json"), force=False):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_forced_file_keeps_its_content_until_the_first_write(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("old")
    with pytest.raises(RuntimeError), OutputFile(str(file), force=True):
        raise RuntimeError
    assert file.read_text() == "old"
    with OutputFile(str(file), force=True) as output:
        output.write("new")
    assert file.read_text() == "new"


def test_an_interrupted_run_keeps_what_was_written(tmp_path: Path) -> None:
    def write_and_stop() -> None:
        with OutputFile(str(tmp_path / "r.json"), force=False) as output:
            output.write("first case")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_stop()
    assert (tmp_path / "r.json").read_text() == "first case"


@pytest.mark.parametrize("force", [False, True])
def test_a_place_that_cannot_be_written_is_found_before_the_work(force: bool, tmp_path: Path) -> None:
    for bad in (tmp_path / "no" / "r.json", tmp_path):
        with pytest.raises(UsageError, match=r"give another file|--force"):
            OutputFile(str(bad), force=force)


def test_stdout_gets_the_last_text_once_and_nothing_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with OutputFile("-", force=False) as output:
        output.write("one")
        output.write("two")
    assert capsys.readouterr().out == "two"

    def write_half() -> None:
        with OutputFile("-", force=False) as output:
            output.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert capsys.readouterr().out == ""


def test_no_path_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with OutputFile(None, force=False) as output:
        output.write("gone")
    assert list(tmp_path.iterdir()) == []
