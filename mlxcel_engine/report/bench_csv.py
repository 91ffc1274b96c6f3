"""A CSV file that grows by a line a measurement; its header is written once."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.bench import BenchRow

if TYPE_CHECKING:
    from mlxcel_engine.records.bench import BenchRecord

_ABOUT = (
    "created",
    "model",
    "synthetic",
    "architecture",
    "dtype",
    "weights",
    "device_name",
    "mlx",
    "mlx_lm",
    "blas",
    "deterministic",
    "ragged",
)
_ROW = tuple(name for name in BenchRow.model_fields if name not in ("samples", "stream_tok_s"))
COLUMNS = (*_ABOUT, *_ROW)


class BenchCsv:
    """Appends to ``path``, or nowhere for None; what is there stays.

    Raises:
        UsageError: the file cannot be written, or its header is not :data:`COLUMNS`; found out before the work.

    """

    def __init__(self, path: str | None) -> None:
        if path == "-":
            raise UsageError("--csv -: rows are appended to a file; give one (--json - writes to stdout)")
        self._path = None if path is None else Path(os.path.realpath(path))
        if self._path is None:
            return
        try:
            if not _usable(self._path):
                raise UsageError(f"--csv {path}: cannot be written; give another file")
            if self._path.exists() and _header(self._path) not in (b"", _line(COLUMNS).encode()):
                raise UsageError(f"--csv {path}: has other columns than these rows; give another file")
        except OSError as error:
            raise UsageError(f"--csv {path}: cannot be written ({error.strerror}); give another file") from None

    def append(self, record: BenchRecord, row: BenchRow) -> None:
        """Append ``row`` of ``record``; it is on disk when this returns."""
        if self._path is None:
            return
        model, env = record.config.model, record.environment
        about = (record.created.isoformat(), model.label, model.synthetic, model.architecture, model.dtype)
        host = (env.device_name, env.mlx, env.mlx_lm, env.blas, env.deterministic)
        line = _line((*about, model.weights, *host, record.config.ragged, *(getattr(row, name) for name in _ROW)))
        with self._path.open("ab+") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                line = _line(COLUMNS) + line
            else:
                stream.seek(-1, os.SEEK_END)
                line = line if stream.read(1) == b"\n" else "\n" + line  # a run before was killed in the middle of one
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())


def _usable(path: Path) -> bool:
    """Whether the resolved ``path`` is a file that can be read and appended to, or can become one."""
    if path.exists():
        return path.is_file() and os.access(path, os.R_OK | os.W_OK)
    return path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_symlink()  # nor a loop of links


def _header(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.readline()


def _line(values: tuple[object, ...]) -> str:
    """One line of CSV; None is an empty field."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(values)  # so that either of them is quoted in a field
    return text.getvalue().removesuffix("\r\n") + "\n"
