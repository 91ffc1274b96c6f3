"""mlxcel-engine: parity, speed and regression checks for MLX decode loops, and the engine under them.

Importing the package applies the settings that must precede ``import mlx.core`` (see :mod:`.preload`).
"""

from mlxcel_engine.preload import PRELOAD
from mlxcel_engine.version import __version__

__all__ = ["PRELOAD", "__version__"]
