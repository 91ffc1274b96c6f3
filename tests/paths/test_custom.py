"""The package of docs/parity.md is built, installed and run as it stands; broken ones are one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mlxcel_engine.errors import UsageError
from mlxcel_engine.paths import path_makers, registry
from tests.loaded import write_checkpoint

PAGE = (Path(__file__).parent.parent.parent / "docs" / "parity.md").read_text()
RUN = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"


def blocks(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(block)


def test_the_example_is_installed_and_gets_its_rows(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "pyproject.toml").write_text(blocks("toml"))
    (source / "plain_loop.py").write_text(blocks("python"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--disable-pip-version-check", "--target", str(site), str(source)], check=True)
    checkpoint = write_checkpoint(tmp_path / "tiny")
    command = [sys.executable, "-c", RUN, "parity", "-m", str(checkpoint), "-p", "two roads", "-n", "12"]
    command += ["--paths", "cli,engine,plain-loop", "--json", "-", "--teacher-forced"]
    root = str(Path(__file__).parent.parent.parent)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), root))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    rows = {(row["case"], row["right"]): row for row in record["rows"] if row["left"] == "cli"}
    for case in ("greedy", "seeded"):
        row = rows[case, "plain-loop"]
        assert (row["verdict"], row["logits"]) == ("identical", "close")
        assert row["evidence"]["right"]["partition"] == [[0, 9]]
    assert [row["top1_agreement"] for row in record["forced"]] == [1.0] * 4


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (EntryPoint("mine", "no_such_module:Path", registry.GROUP), "cannot be made (ModuleNotFoundError"),
        (EntryPoint("mine", "pathlib:NoSuchClass", registry.GROUP), "cannot be made (AttributeError"),
        (EntryPoint("mine", "tests.faults:FaultyEngine", registry.GROUP), "cannot be made (TypeError"),
        (EntryPoint("mine", "mlxcel_engine.paths.engine:EnginePath", registry.GROUP), "calls itself 'engine'"),
        (EntryPoint("mine", "sys:exit", registry.GROUP), "cannot be made (SystemExit"),
    ],
)
def test_a_broken_package_is_named_when_its_path_is_made(
    entry: EntryPoint, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    makers = path_makers(4)
    assert makers["cli"]().name == "cli"
    with pytest.raises(UsageError, match=re.escape(said)):
        makers["mine"]()


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("engine", "mlxcel_engine.paths.engine:EnginePath", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(UsageError, match=r"'engine' of mlxcel_engine.paths.engine:EnginePath is there already"):
        path_makers(4)
