"""What ``--arm NAME="FLAGS"`` says, and the command that it becomes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.rounds import ArmConfig
from mlxcel_engine.rounds.schedule import NULL_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlxcel_engine.records.rounds import RoundsConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
_OWN_FLAGS = ("--json", "--csv", "--force")
TAKES_VALUE = {
    "-m",
    "--model",
    "--path",
    "--ctx",
    "-n",
    "--max-tokens",
    "--warmup",
    "--warmup-tokens",
    "--prefill-chunk",
    "--invariant-shape",
    "--decode-storage",
    "--batch",
    "--dtype",
    "--weights",
    "--label",
    "--csv",
    "--json",
    "--fake-path",
}
_PACKAGE = Path(__file__).resolve().parent.parent


def parse_arms(texts: Sequence[str]) -> list[ArmConfig]:
    """Parse every ``NAME=FLAGS``; FLAGS are ``bench`` flags, ``ENV:NAME=VALUE`` and ``PYTHON:path``.

    Raises:
        UsageError: an arm that cannot be run, a name that is reserved or used twice, fewer than two arms.

    """
    arms = [_parse_arm(text) for text in texts]
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--arm {name}: the name is used {names.count(name)} times; give each arm its own")
    if len(arms) < 2:
        raise UsageError(f"--arm: {len(arms)} given, a comparison needs two or more; the first is the reference")
    return arms


def parse_extra(text: str) -> list[str]:
    """Parse ``--extra``: ``bench`` flags for every arm."""
    flags = _split("--extra", text)
    _check_flags("--extra", flags)
    return flags


def _parse_arm(text: str) -> ArmConfig:
    name, equals, rest = text.partition("=")
    name = name.strip()
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(
            f"--arm {text}: give NAME=FLAGS, with a name of up to 40 letters, digits and ._+-, a letter or digit first"
        )
    if name.endswith(NULL_SUFFIX):
        raise UsageError(f"--arm {name}: names that end in {NULL_SUFFIX} are those of null arms; take another")
    where = f"--arm {name}"
    flags: list[str] = []
    variables: dict[str, str] = {}
    python: str | None = None
    for word in _split(where, rest):
        if word.startswith("ENV:"):
            variable, set_to, value = word.removeprefix("ENV:").partition("=")
            if not set_to or not variable:
                raise UsageError(f"{where}: {word}: give ENV:NAME=VALUE")
            variables[variable] = value
        elif word.startswith("PYTHON:"):
            python = _interpreter(where, word.removeprefix("PYTHON:"))
        else:
            flags.append(word)
    _check_flags(where, flags)
    return ArmConfig(name=name, flags=flags, variables=variables, python=python)


def _split(where: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where}: {text}: {error}; close the quotes") from None


def _check_flags(where: str, flags: Sequence[str]) -> None:
    for option, value in _options(flags):
        if option.split("=")[0] in _OWN_FLAGS:
            raise UsageError(
                f"{where}: {option} belongs to rounds itself, which reads every run's record; leave it out"
            )
        if value is None:
            raise UsageError(f"{where}: {option} has no value; give it one")


def _options(flags: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option and the word that is its value: "" where it takes none or has it attached, None where it is missing.

    A value may look like an option, as in ``--label -nightly``; it is none.
    """
    words = iter(flags)
    for word in words:
        yield word, next(words, None) if word in TAKES_VALUE else ""


def _interpreter(where: str, path: str) -> str:
    expanded = str(Path(path).expanduser()) if path.startswith("~") else path
    if shutil.which(expanded) is None:
        raise UsageError(f"{where}: PYTHON:{path}: no such executable; give the path of a Python with mlxcel-engine")
    return expanded


def command_of(arm: ArmConfig, config: RoundsConfig) -> list[str]:
    """The ``bench`` command of a run. What the arm or ``--extra`` says of model, context and tokens comes first.

    ``-P`` keeps the working directory off the module path, so that the interpreter runs what is installed for it.
    """
    given = [*config.extra, *arm.flags]
    common: list[str] = []
    if not _has(given, "-m", "--model"):
        common += ["-m", config.model]
    if not _has(given, "--ctx"):
        common += [word for ctx in config.ctx for word in ("--ctx", str(ctx))]
    if not _has(given, "-n", "--max-tokens"):
        common += ["-n", str(config.max_tokens)]
    return [arm.python or sys.executable, "-P", "-m", "mlxcel_engine", "bench", *common, *given, "--json", "-"]


def environment_of(arm: ArmConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run: ours and the arm's own.

    An arm on our interpreter runs the very package that runs ``rounds``; one on another must not find ours first.
    """
    environment = dict(environ)
    paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if path]
    if arm.python is None:
        environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGE.parent), *paths])
    return {**environment, **arm.variables}


def _has(flags: Sequence[str], *names: str) -> bool:
    return any(option.split("=")[0] in names or _short(option, names) for option, _ in _options(flags))


def _short(flag: str, names: Sequence[str]) -> bool:
    """Whether ``flag`` is a short option with its value attached, as in ``-n32``."""
    return not flag.startswith("--") and flag[:2] in names


def is_arm_name(name: str) -> bool:
    """Whether an arm can have this name."""
    return _NAME.fullmatch(name) is not None and not name.endswith(NULL_SUFFIX)


def contexts_of(arm: ArmConfig, config: RoundsConfig) -> list[int]:
    """Return the contexts, in tokens, that ``arm`` is asked for: its own and those of ``--extra``, else the command's.

    An arm that asks for what is no number has none: ``bench`` refuses it.
    """
    asked: list[str] = []
    for option, following in _options([*config.extra, *arm.flags]):
        name, attached, value = option.partition("=")
        if name == "--ctx":
            asked.append(value if attached else following or "")
    try:
        return [int(word) for word in dict.fromkeys(asked)] or list(config.ctx)
    except ValueError:
        return []
