from __future__ import annotations

from mlxcel_engine.records.base import Record


class Environment(Record):
    """Where a record was made: everything outside the model and the prompt that can change its figures.

    ``memory_bytes`` is the machine's RAM. ``variables`` holds the environment variables that change results,
    with a path cut to its last component. ``project_commit`` is None outside a git checkout, and ends in
    ``-dirty`` when tracked files of the package were changed.
    """

    processor: str
    cores: int
    memory_bytes: int
    os: str
    python: str
    mlx: str
    mlx_lm: str
    transformers: str
    tokenizers: str
    project: str
    project_commit: str | None
    device: str
    device_name: str
    dtype: str
    blas: str
    blas_version: str
    deterministic: bool
    mlx_was_first: bool
    variables: dict[str, str]
