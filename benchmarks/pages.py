"""What the scripts that write a page beside its data have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent


def in_repository(path: Path) -> str:
    """How to name ``path`` from the repository's root; one elsewhere by its last part alone."""
    place = path.resolve()
    return place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else place.name


def machine_line(environment: Mapping[str, object]) -> str:
    """Processor, system, versions and commit of a record's environment; what it lacks is ``unknown``."""
    said = {name: environment.get(name, "unknown") for name in _SHOWN}
    switch = "on" if environment.get("deterministic") else "off"
    memory = environment.get("memory_bytes")
    size = f"{memory / 2**30:.0f} GiB, " if isinstance(memory, int) else ""
    return (
        f"{said['processor']}, {said['cores']} cores, {size}{said['os']}; mlx {said['mlx']}, mlx-lm {said['mlx_lm']}, "
        f"{said['blas_version']}, deterministic {switch}; commit {said['project_commit']}."
    )


_SHOWN = ("processor", "cores", "os", "mlx", "mlx_lm", "blas_version", "project_commit")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; a bar within a cell becomes a slash."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def write_whole(file: Path, text: str) -> None:
    """Replace ``file`` by ``text`` at once; who reads it finds the old or the new one."""
    temporary = file.with_name(f".{file.name}-{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
