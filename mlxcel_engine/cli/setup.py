"""What every command does before its work: consoles, device, checkpoint."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from mlxcel_engine.errors import UsageError
from mlxcel_engine.preload import PRELOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@contextmanager
def outliving_reader() -> Iterator[None]:
    """Go on when whoever reads stdout has left: the verdict and the exit code do not depend on it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str) -> None:
    """Print one warning line to stderr."""
    print(f"warning: {text}", file=sys.stderr)


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
