"""What an arm says, and the command and environment that it becomes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

import mlxcel_engine
from mlxcel_engine.cli.main import app
from mlxcel_engine.errors import UsageError
from mlxcel_engine.rounds.arms import TAKES_VALUE, command_of, contexts_of, environment_of, parse_arms, parse_extra
from tests.rounds.fakes import config

HERE = str(Path(mlxcel_engine.__file__).parent.parent)


def test_flags_variables_and_interpreter_are_told_apart() -> None:
    a, b = parse_arms(
        ["a=--path cli", f"b-2=--path engine ENV:MLXCEL_BLAS=openblas ENV:EMPTY= PYTHON:{sys.executable} --label 'x y'"]
    )
    assert (a.name, a.flags, a.variables, a.python) == ("a", ["--path", "cli"], {}, None)
    assert (b.name, b.flags) == ("b-2", ["--path", "engine", "--label", "x y"])
    assert (b.variables, b.python) == ({"MLXCEL_BLAS": "openblas", "EMPTY": ""}, sys.executable)
    assert parse_arms(
        [f"{arm.name}={arm.text.partition('=')[2][1:-1]}" for arm in (a, a.model_copy(update={"name": "c"}))]
    )


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        (["a=", "a-null="], "names that end in -null are those of null arms"),
        (["a=", "b=", "a="], "--arm a: the name is used 2 times"),
        (["a="], "1 given"),
        ([], "0 given"),
        (["a", "b="], "--arm a: give NAME=FLAGS"),
        (["=--path cli", "b="], "give NAME=FLAGS"),
        (["a b=", "c="], "give NAME=FLAGS"),
        (["a=--label 'x", "b="], "close the quotes"),
        (["a=ENV:X", "b="], "ENV:X: give ENV:NAME=VALUE"),
        (["a=ENV:=1", "b="], "give ENV:NAME=VALUE"),
        (["a=PYTHON:/no/such/python", "b="], "PYTHON:/no/such/python: no such executable"),
        (["a=--json x", "b="], "--json belongs to rounds"),
        (["a=--csv=x", "b="], "--csv=x belongs to rounds"),
        (["a=--path cli --label", "b="], "--arm a: --label has no value"),
    ],
)
def test_an_arm_that_cannot_be_is_refused(arms: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")):
        parse_arms(arms)


def test_extra_flags_are_checked_too() -> None:
    assert parse_extra("--batch 2 --label 'x y'") == ["--batch", "2", "--label", "x y"]
    assert parse_extra("--label --json --path cli") == ["--label", "--json", "--path", "cli"]
    with pytest.raises(UsageError, match="--force belongs"):
        parse_extra("--force")


def test_the_options_that_take_a_value_are_those_of_bench() -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    options = [one for one in command.commands["bench"].params if isinstance(one, TyperOption)]
    found = {name for option in options if not option.is_flag for name in option.opts}
    assert found == TAKES_VALUE


def test_the_command_takes_from_the_arm_what_it_sets_and_the_rest_from_rounds() -> None:
    what = config("a", "b", ctx=(256, 512))
    a = what.arms[0]
    assert command_of(a, what)[:5] == [sys.executable, "-P", "-m", "mlxcel_engine", "bench"]
    assert " ".join(command_of(a, what)[5:]) == "-m default --ctx 256 --ctx 512 -n 32 --path cli --json -"
    for flags, kept in (
        (["--ctx", "9"], "-m default -n 32 --ctx 9"),
        (["-n4", "--model=x"], "--ctx 256 --ctx 512 -n4 --model=x"),
        (["--max-tokens=4", "-m", "x"], "--ctx 256 --ctx 512 --max-tokens=4 -m x"),
        (["--label", "-nightly"], "-m default --ctx 256 --ctx 512 -n 32 --label -nightly"),
        (["--label", "--label"], "-m default --ctx 256 --ctx 512 -n 32 --label --label"),
        (["--label=-m", "-n4"], "-m default --ctx 256 --ctx 512 --label=-m -n4"),
    ):
        assert " ".join(command_of(a.model_copy(update={"flags": flags}), what)[5:]) == f"{kept} --json -"


def test_our_interpreter_runs_this_package_and_another_one_its_own() -> None:
    arm = config("a", "b").arms[0].model_copy(update={"variables": {"X": "2"}})
    inherited = {"X": "1", "Y": "3", "PYTHONPATH": "/elsewhere"}
    ours = environment_of(arm, inherited)
    assert ours == {"X": "2", "Y": "3", "PYTHONPATH": f"{HERE}{os.pathsep}/elsewhere"}
    other = environment_of(arm.model_copy(update={"python": "/venv/bin/python"}), inherited)
    assert other == {"X": "2", "Y": "3"}


@pytest.mark.parametrize(
    ("flags", "extra", "asked"),
    [
        ("--path cli", "", [256]),
        ("--ctx 64 --ctx=128 --ctx 64", "", [64, 128]),
        ("--ctx 64", "--ctx 32", [32, 64]),
        ("--ctx 8k", "", []),
    ],
)
def test_the_contexts_of_an_arm_are_its_own_or_the_commands(flags: str, extra: str, asked: list[int]) -> None:
    first, second = parse_arms([f"a={flags}", "b="])
    what = config("a", "b").model_copy(update={"extra": parse_extra(extra)})
    assert contexts_of(first, what) == asked
    assert contexts_of(second, what) == ([32] if extra else [256])
