"""Prompts, sampling and paths of others that nobody expects: one line and exit 2, or the row that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from mlxcel_engine.cli.main import main
from mlxcel_engine.paths import PathRun, registry
from mlxcel_engine.paths.engine import EnginePath
from tests.cli.command import RUN, one_line, parity
from tests.loaded import write_checkpoint
from tests.tiny import tiny_config

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import PathRequest, TokenSteps


class Leaving(EnginePath):
    """Leaves the process with exit code 0, as a script without a guard does."""

    name = "leaving"

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        sys.exit(0)


class Talking(EnginePath):
    """Prints what it generates."""

    name = "talking"

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        run = super().run(loaded, request)

        def steps() -> TokenSteps:
            for step in run.steps:
                print("a token")
                yield step

        return PathRun(steps(), run.evidence)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint(path.name, f"{__name__}:{path.__name__}", registry.GROUP) for path in (Leaving, Talking)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)


@pytest.mark.usefixtures("registered")
def test_a_path_that_leaves_the_process_does_not_pass_the_gate(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    options = ("--paths", "leaving,cli,engine", "--cases", "greedy", "--json", str(file), "--expect-identical")
    assert parity(checkpoint, *options) == 3
    assert "path leaving failed after 0 tokens (SystemExit: 0)" in one_line(capsys.readouterr().err)
    rows = {(row["left"], row["right"]): row["verdict"] for row in json.loads(file.read_text())["rows"]}
    assert rows == {("cli", "engine"): "identical", ("cli", "leaving"): "invalid"}


@pytest.mark.usefixtures("registered")
def test_what_a_path_prints_is_not_our_data(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(checkpoint, "--paths", "cli,talking", "--cases", "greedy", "--json", "-") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"][0]["verdict"] == "identical"
    assert err.count("a token\n") == 8


def test_ids_that_the_model_lacks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**tiny_config("llama"), "vocab_size": 100}
    model_class, args_class = _get_classes(config)
    folder = write_checkpoint(tmp_path / "small", vocab_size=100)
    weights = dict(tree_flatten(model_class(args_class.from_dict(config)).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    assert main(["parity", "-m", str(folder), "-p", "\u00e9", "-n", "2"]) == 2
    assert "prompt-1: token id" in (said := one_line(capsys.readouterr().err))
    assert "is outside the model's vocabulary of 100" in said
    assert main(["parity", "-m", str(folder), "-p", "ABC", "-n", "2", "--paths", "cli,engine"]) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "no JSON"),
        ('{"seed": ' + "9" * 5_000 + "}", "no JSON"),
        ('{"temperature": NaN}', "finite"),
        ('{"logit_bias": {"300": 1}}', "--sampling: token id 300 is outside the model's vocabulary of 300"),
    ],
    ids=["nested", "a long number", "NaN", "a bias of no token"],
)
def test_sampling_that_cannot_be_is_one_line(
    content: str, said: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(content)
    assert parity(checkpoint, "--sampling", str(file)) == 2
    assert said in one_line(capsys.readouterr().err)


def test_a_byte_order_mark_is_no_part_of_a_prompt(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    options = ["-m", checkpoint, "-n", "2", "--paths", "cli,engine", "--cases", "greedy", "--json", "-"]
    assert main(["parity", "--prompts", str(file), *options]) == 0
    assert [prompt["text"] for prompt in json.loads(capsys.readouterr().out)["config"]["prompts"]] == ["one", "two"]


def test_of_several_prompts_the_one_that_is_too_long_is_named(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.txt"
    file.write_text("short\n" + "x" * 600)
    assert main(["parity", "-m", checkpoint, "--prompts", str(file)]) == 2
    assert "prompt-2: 600 prompt tokens" in one_line(capsys.readouterr().err)


def test_a_terminal_without_unicode_takes_nothing_away(checkpoint: str) -> None:
    command = [
        sys.executable,
        "-c",
        RUN,
        "parity",
        "-m",
        checkpoint,
        "-p",
        "h\u00e9llo",
        "-n",
        "2",
        "--paths",
        "cli,engine",
    ]
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, env=variables, check=False)
    assert (done.returncode, b"h\\xe9llo" in done.stdout) == (0, True), done.stderr
    done = subprocess.run([*command, "--json", "-"], capture_output=True, env=variables, check=False)
    assert json.loads(done.stdout)["config"]["prompts"][0]["text"] == "h\u00e9llo"
