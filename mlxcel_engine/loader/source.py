"""From what the user names as a model to a checked directory in ``mlx-lm``'s format. No MLX."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcel_engine.errors import CheckpointError, one_line
from mlxcel_engine.loader.default_checkpoint import DEFAULT_LABEL, default_checkpoint, gguf_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.loader.cache import CheckpointCache

DEFAULT_SPEC = "default"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja"]


@dataclass(frozen=True)
class Source:
    """A checkpoint on disk: what the user called it, what to show for it, its directory, and which version it is."""

    spec: str
    label: str
    directory: Path
    revision: str | None = None


def find_source(
    spec: str, cache: CheckpointCache, progress: Callable[[str], None], *, trust_remote_code: bool = False
) -> Source:
    """Find, fetch or convert the checkpoint that ``spec`` names: ``default``, a directory, a .gguf file, a hub id.

    Raises:
        CheckpointError: one line that says what is missing or broken and what to do.

    """
    if not spec:
        raise CheckpointError("the model name is empty; give a directory, a .gguf file, a hub id or default")
    try:
        path = Path(spec).expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{spec[:80]}: not a usable path ({one_line(error, 80)}); give another") from None
    if spec == DEFAULT_SPEC:
        directory = default_checkpoint(cache, progress)
        source = Source(spec, DEFAULT_LABEL, directory, directory.name)
    elif is_directory:
        source = Source(spec, path.resolve().name, path)
    elif path.suffix == ".gguf":
        if not is_file:
            raise CheckpointError(f"{spec}: no such file; give a GGUF file, a directory or a hub id")
        directory = gguf_checkpoint(path, cache, progress)
        source = Source(spec, path.name, directory, directory.name)
    elif is_file:
        raise CheckpointError(f"{spec}: not a checkpoint; give its directory (safetensors) or a .gguf file")
    elif _HUB_ID.fullmatch(spec):
        directory = _download(spec, progress, trust_remote_code)
        source = Source(spec, spec, directory, directory.name)
    else:
        raise CheckpointError(f"{spec}: no such directory; give a directory, a .gguf file or a hub id (owner/name)")
    check_directory(source, trust_remote_code=trust_remote_code)
    return source


def check_directory(source: Source, *, trust_remote_code: bool = False) -> None:
    """Check that the directory holds a readable config and whole safetensors files.

    Raises:
        CheckpointError: the first thing found wrong.

    """
    config = source.directory / "config.json"
    if not config.is_file():
        raise CheckpointError(
            f"{source.spec}: no config.json; give a directory in mlx-lm's format (see mlx_lm.convert)"
        )
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{source.spec}: config.json is not readable JSON ({one_line(error)}); fetch it anew"
        ) from None
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise CheckpointError(f"{source.spec}: config.json has no model_type; add it, or convert the model anew")
    if settings.get("model_file") and not trust_remote_code:
        raise CheckpointError(
            f"{source.spec}: the model is built by its own code, {settings['model_file']}; read it, then "
            "run it with --trust-remote-code"
        )
    files = sorted(source.directory.glob("model*.safetensors"))
    if not files:
        others = sorted({file.suffix for file in source.directory.iterdir() if file.suffix in (".bin", ".pt", ".npz")})
        found = f" (it has {', '.join(others)}, which is not read)" if others else ""
        raise CheckpointError(f"{source.spec}: no model*.safetensors{found}; convert it with mlx_lm.convert")
    for file in files:
        check_safetensors(file, source.spec)


def check_safetensors(file: Path, spec: str) -> None:
    """Check that ``file`` of ``spec`` is exactly as long as its header says: a cut-short copy is refused up front.

    Raises:
        CheckpointError: not a safetensors file, or its length is wrong.

    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (header_size,) = struct.unpack("<Q", stream.read(8))
            if header_size > size:
                raise ValueError("header beyond the end")
            header = json.loads(stream.read(header_size))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except OSError as error:
        raise CheckpointError(f"{spec}: {file.name} cannot be read ({error.strerror}); fetch it anew") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        raise CheckpointError(f"{spec}: {file.name} is not a safetensors file, or cut short; fetch it anew") from None
    if size != 8 + header_size + end:
        raise CheckpointError(
            f"{spec}: {file.name} has {size} bytes, its header says {8 + header_size + end}; fetch it anew"
        )


def _download(spec: str, progress: Callable[[str], None], trust_remote_code: bool) -> Path:
    """Take a hub checkpoint from the local hub cache, or fetch it; no code files unless trusted."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    patterns = [*_FILES, "*.py"] if trust_remote_code else _FILES
    try:
        return Path(snapshot_download(spec, allow_patterns=patterns, local_files_only=True))
    except (OSError, ValueError):
        progress(f"fetching {spec} from the hub")
    try:
        return Path(snapshot_download(spec, allow_patterns=patterns))
    except GatedRepoError:
        raise CheckpointError(f"{spec}: access is gated; accept its terms on the hub and log in with hf auth") from None
    except RepositoryNotFoundError:
        raise CheckpointError(f"{spec}: not on the hub, or private; check the name, or log in with hf auth") from None
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = (str(error).splitlines() or ["no answer"])[0].removeprefix("Got: ")[:120]
        message = f"{spec}: not a local directory, and the hub gives nothing ({reason}); check the name, or go online"
        raise CheckpointError(message) from None
