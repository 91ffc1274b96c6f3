"""Measurements behind the figures of the documents: ``python -m benchmarks.NAME``.

The BLAS settings have to be applied before a benchmark imports MLX.
"""

import mlxcel_engine  # noqa: F401 - applies them
