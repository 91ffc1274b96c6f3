"""What every command does before its work: consoles, device, checkpoint."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from mlxcel_engine.errors import UsageError
from mlxcel_engine.preload import PRELOAD
from mlxcel_engine.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import typer

    from mlxcel_engine.device import Device
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.loader.policy import LoadPolicy


def error_console() -> Console:
    """The console of progress and warnings."""
    return Console(stderr=True, highlight=False)


def table_console(*, to_stderr: bool) -> Console:
    """The console of tables; off a terminal it is as wide as its content, so that nothing is cut or wrapped."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 100_000
    return console


def warn(text: str) -> None:
    """Print one warning line to stderr."""
    say(f"warning: {text}")


def say(text: str) -> None:
    """Print one line to stderr, without the control characters that another program may have put into it."""
    print(printable(text), file=sys.stderr)


def refuse_one_file_twice(written: Sequence[str | None], read: Sequence[str | None] = ()) -> None:
    """Refuse a file that two outputs name, or that an output and an input name; None names none, ``-`` a standard one.

    Raises:
        UsageError: names the file.

    """
    outputs = [path if path == "-" else os.path.realpath(path) for path in written if path is not None]
    inputs = {os.path.realpath(path) for path in read if path not in (None, "-")}
    for place in outputs:
        if outputs.count(place) > 1 or place in inputs:
            raise UsageError(f"{place} is named for two files; give each its own")


def refuse_run_options(context: typer.Context, allowed: Collection[str]) -> None:
    """Beside ``--from``, refuse every option that was given and is not among ``allowed`` (names of parameters).

    Raises:
        UsageError: names the first one.

    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in allowed:
            option = max(parameter.opts, key=len)
            raise UsageError(f"{option} does nothing with --from, which runs nothing; leave one of them out")


def refuse_beside(context: typer.Context, name: str, other: str) -> None:
    """Refuse the option of parameter ``name``, if it was given, since it has no effect beside ``other``.

    Raises:
        UsageError: names both.

    """
    source = context.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        raise UsageError(f"--{name.replace('_', '-')} does nothing beside {other}; leave it out")


def prepare_runtime() -> Device:
    """Check the settings that precede MLX's import and select the device; to be called before ``mlx_lm`` is imported.

    Raises:
        UsageError: the BLAS or the device that was asked for is not there.

    """
    if PRELOAD.problem is not None:
        raise UsageError(PRELOAD.problem)
    from mlxcel_engine.device import select_device

    device = select_device(PRELOAD.device)
    if PRELOAD.warning is not None and (device == "cpu" or PRELOAD.mlx_was_first):
        warn(PRELOAD.warning)
    return device


def load_model(
    spec: str, policy: LoadPolicy, progress: Callable[[str], None], *, trust_remote_code: bool
) -> LoadedModel:
    """Load ``spec`` with the user's checkpoint cache."""
    from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
    from mlxcel_engine.loader.load import load

    cache = CheckpointCache(default_cache_root(os.environ))
    return load(spec, policy, cache, progress, trust_remote_code=trust_remote_code)
