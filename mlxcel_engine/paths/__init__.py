"""Each decode loop, adapted to one protocol (:class:`~mlxcel_engine.paths.base.DecodePath`)."""

from mlxcel_engine.paths.base import DecodePath, PathRequest, PathRun, TokenStep, TokenSteps
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.paths.mlx_lm_cli import MlxLmCli
from mlxcel_engine.paths.mlx_lm_server import MlxLmServer

__all__ = ["DecodePath", "PathRequest", "PathRun", "TokenStep", "TokenSteps", "all_paths"]


def all_paths() -> list[DecodePath]:
    """Every path there is, in the order of the tables."""
    return [MlxLmCli(), MlxLmServer(), EnginePath()]
