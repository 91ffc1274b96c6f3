"""A folder of checkpoints that are made once: whole or not at all, by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcel_engine.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VARIABLE = "MLXCEL_CACHE"

_MANIFEST = "manifest.json"
_LOCK = ".lock"
_UNFINISHED = ".building-"


def default_cache_root(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the folder that ``MLXCEL_CACHE`` names, else this user's cache folder for the program.

    Args:
        environ: the environment variables.
        platform: as ``sys.platform``.

    Raises:
        CheckpointError: there is no ``HOME`` to put a cache under and nothing that replaces it.

    """
    chosen = environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    if platform != "darwin" and xdg.is_absolute():
        return xdg / "mlxcel-engine"
    home = environ.get("HOME")
    if not home:
        raise CheckpointError(f"HOME is not set, so there is no cache folder: set {VARIABLE} to a writable one")
    return Path(home) / ("Library/Caches" if platform == "darwin" else ".cache") / "mlxcel-engine"


@dataclass(frozen=True)
class CheckpointCache:
    """Checkpoint directories under ``root``, each with a manifest of its files' sizes."""

    root: Path

    def build(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return ``root/name``, filled by ``make`` unless a complete entry is already there.

        ``make`` gets an empty directory, which becomes the entry only when it returns. Whatever it raises passes
        through, an interrupt too, and leaves nothing; what a killed process left is removed. Another process that
        wants an entry meanwhile waits. A complete entry is returned without writing anything.

        Raises:
            CheckpointError: ``root`` cannot be written, or ``make`` met an OSError.

        """
        entry = self.root / name
        if _is_complete(entry):
            return entry
        try:
            with _lock(self.root):
                if not _is_complete(entry):
                    self._fill(entry, make)
        except OSError as error:
            raise CheckpointError(
                f"cache {self.root} cannot be written ({error.strerror or error}): set {VARIABLE} to a writable "
                "folder with room"
            ) from error
        return entry

    def _fill(self, entry: Path, make: Callable[[Path], None]) -> None:
        """Make ``entry`` anew; the lock must be held, which is why every unfinished folder is a leftover."""
        for leftover in self.root.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover)
        building = self.root / f"{_UNFINISHED}{os.getpid()}"
        building.mkdir()
        try:
            make(building)
            manifest = json.dumps({"sizes": _sizes(building)}, indent=2)
            (building / _MANIFEST).write_text(manifest + "\n", encoding="utf-8")
            if entry.exists():
                shutil.rmtree(entry)
            building.rename(entry)
        finally:
            shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _lock(root: Path) -> Iterator[None]:
    """Hold the one lock of ``root``; it ends with the process, however that ends."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sizes(directory: Path) -> dict[str, int]:
    """Return the size in bytes of each file under ``directory``, by relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}


def _is_complete(entry: Path) -> bool:
    try:
        manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        found = _sizes(entry)
    except (OSError, ValueError):
        return False
    sizes = manifest.get("sizes") if isinstance(manifest, dict) else None
    return isinstance(sizes, dict) and sizes.items() <= found.items()
