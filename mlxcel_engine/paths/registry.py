"""All paths there are: our own, and those that other packages register."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from mlxcel_engine.errors import UsageError, one_line
from mlxcel_engine.paths import scheduler
from mlxcel_engine.paths.base import FOREIGN_FAILURES
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.paths.mlx_lm_batch import MlxLmBatch
from mlxcel_engine.paths.mlx_lm_cli import MlxLmCli
from mlxcel_engine.paths.mlx_lm_server import MlxLmServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.paths.base import DecodePath

GROUP = "mlxcel_engine.paths"


def path_makers(width: int) -> dict[str, Callable[[], DecodePath]]:
    """What makes each path, by its name, in the order of the tables; ``width`` rows share a batch of the batch paths.

    A path of another package is imported only when it is made.

    Raises:
        UsageError: two of that name.

    """
    own: dict[str, Callable[[], DecodePath]] = {
        "cli": MlxLmCli,
        "mlx-server": MlxLmServer,
        "engine": EnginePath,
        "dense": scheduler.dense,
        "paged": scheduler.paged,
        "cache-miss": scheduler.cache_miss,
        "cache-hit": scheduler.cache_hit,
        f"batch-{width}": lambda: scheduler.batch(width),
        f"mlx-batch-{width}": lambda: MlxLmBatch(width),
    }
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in own:
            raise UsageError(
                f"the decode path {entry.name!r} of {_origin(entry)} is there already; rename or remove it"
            )
        own[entry.name] = _maker(entry)
    return own


def _maker(entry: EntryPoint) -> Callable[[], DecodePath]:
    def make() -> DecodePath:
        try:
            path: Any = entry.load()()
            found = str(path.name)
        except FOREIGN_FAILURES as error:
            message = f"the decode path {entry.name!r} of {_origin(entry)} cannot be made ({one_line(error)})"
            raise UsageError(f"{message}; mend or remove it, or leave it out with --paths") from error
        if found != entry.name:
            raise UsageError(
                f"the decode path {entry.name!r} of {_origin(entry)} calls itself {found!r}; give it one name"
            )
        made: DecodePath = path
        return made

    return make


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} ({entry.value})" if entry.dist is not None else entry.value
