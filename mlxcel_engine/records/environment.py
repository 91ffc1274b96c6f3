from __future__ import annotations

from mlxcel_engine.records.base import Record


class Environment(Record):
    """Where a record was made: everything outside the model and the prompt that can change its figures."""

    processor: str
    """Its name where the system tells it, else its architecture."""
    cores: int
    """Logical processors."""
    memory_bytes: int
    """The machine's RAM."""
    os: str
    """System and release of its kernel."""
    python: str
    """Version."""
    mlx: str
    """Version."""
    mlx_lm: str
    """Version."""
    transformers: str
    """Version."""
    tokenizers: str
    """Version."""
    project: str
    """Version of this package."""
    project_commit: str | None
    """None outside a git checkout; ends in ``-dirty`` when tracked files of the package were changed."""
    device: str
    """Where the model ran: ``cpu`` or ``gpu``."""
    device_name: str
    """The processor or the GPU."""
    dtype: str
    """Of most of the weights as they ran."""
    blas: str
    """The library of the matrix products on a CPU, as it was chosen."""
    blas_version: str
    """What that library says of itself."""
    deterministic: bool
    """Whether ``MLXCEL_SDPA_DETERMINISTIC`` was set."""
    mlx_was_first: bool
    """MLX was imported before this package, whose settings then came too late."""
    variables: dict[str, str]
    """Environment variables that change results; a path is cut to its last component."""
