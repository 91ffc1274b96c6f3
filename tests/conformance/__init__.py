"""Every text architecture of mlx-lm, tiny and random: how the engine steps it and whether that equals mlx-lm alone."""

import mlxcel_engine  # noqa: F401  # its settings precede MLX's import
