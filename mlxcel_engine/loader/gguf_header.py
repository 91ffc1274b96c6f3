"""A bounds-checked reader of a GGUF file's header, so that a damaged file never reaches MLX's own parser."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from mlxcel_engine.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

Scalar: TypeAlias = "int | float | bool | str"
Value: TypeAlias = "Scalar | list[Scalar]"

_REMEDY = "fetch the file again or choose another"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4

# GGUF value types: 8 is a string, 9 an array, the rest are struct codes.
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# GGML tensor types that MLX reads: name, elements a block, bytes a block.
_READABLE = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
}
# Named for the message only. MLX would read BF16 as float16, which can overflow.
_REFUSED = {6: "Q5_0", 7: "Q5_1", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 30: "BF16"}


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself: ``metadata`` by key, and the tensors' names in file order.

    The accessors return the value of ``key``, or ``default`` where the file has none. They raise CheckpointError
    when the key is missing without a default and when its value is of another kind.
    """

    path: Path
    metadata: dict[str, Value]
    tensors: tuple[str, ...]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string value."""
        value = self._get(key, default)
        return value if isinstance(value, str) else self._refuse(key, value, "a string")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return self._refuse(key, value, "a whole number")

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number as a float."""
        value = self._get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return self._refuse(key, value, "a number")

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self._get(key, default)
        return value if isinstance(value, bool) else self._refuse(key, value, "a truth value")

    def strings(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self._get(key, None)
        if isinstance(value, list):
            items = [item for item in value if isinstance(item, str)]
            if len(items) == len(value):
                return items
        return self._refuse(key, value, "a list of strings")

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers as floats."""
        value = self._get(key, None)
        if isinstance(value, list):
            items = [float(item) for item in value if isinstance(item, int | float)]
            if len(items) == len(value):
                return items
        return self._refuse(key, value, "a list of numbers")

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise CheckpointError(f"{self.path}: no {key} in its metadata: use a file that states it")
        return value

    def _refuse(self, key: str, value: Value, wanted: str) -> NoReturn:
        shown = f"{str(value)[:40]!r}"
        raise CheckpointError(f"{self.path}: {key} is {shown}, not {wanted}: use a file that states it")


def read_header(path: Path) -> GgufHeader:
    """Read metadata and tensor table of the GGUF file ``path`` and check that its data is all there.

    Raises:
        CheckpointError: the file cannot be opened, is no GGUF of version 2 or 3, is truncated or garbled, or
            holds a tensor of a type that MLX does not read.

    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}: give the path of a readable .gguf file") from error
    except ValueError as error:  # an empty file cannot be mapped; a garbled one holds impossible values
        raise CheckpointError(f"{path}: not a readable GGUF file ({error}): {_REMEDY}") from error


class _Reader:
    """A cursor over the mapped file; every read is checked against its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def raw(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise ValueError(f"the header ends at byte {len(self._data)}, {end} needed")
        piece = self._data[self.at : end]
        self.at = end
        return piece

    def many(self, code: str, count: int) -> list[Scalar]:
        size = struct.calcsize("<" + code)
        return [item for (item,) in struct.iter_unpack("<" + code, self.raw(size * count))]

    def number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.raw(struct.calcsize("<" + code)))
        return int(value)

    def text(self) -> str:
        return self.raw(self.number("Q")).decode("utf-8", errors="replace")

    def name(self) -> str:
        text = self.text()
        if not text.isprintable():
            raise ValueError(f"{text[:40]!r} is no name")
        return text

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            item_kind, count = self.number("I"), self.number("Q")
            if item_kind == _STRING:
                return [self.text() for _ in range(count)]
            return self.many(_code(item_kind), count)
        return self.many(_code(kind), 1)[0]


def _code(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind} is unknown")
    return _SCALARS[kind]


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    reader = _Reader(data)
    magic = reader.raw(4)
    if magic != b"GGUF":
        raise ValueError(f"it starts with {magic!r} instead of b'GGUF'")
    version = reader.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version}, readable are 2 and 3")
    tensor_count, value_count = reader.number("Q"), reader.number("Q")
    metadata: dict[str, Value] = {}
    for _ in range(value_count):
        key = reader.name()
        metadata[key] = reader.value(reader.number("I"))
    spans = [_tensor(path, reader) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment}")
    start = -(-reader.at // alignment) * alignment
    for name, offset, size in spans:
        if start + offset + size > len(data):
            raise ValueError(f"truncated: {name} ends at byte {start + offset + size}, the file at byte {len(data)}")
    return GgufHeader(path, metadata, tuple(name for name, _, _ in spans))


def _tensor(path: Path, reader: _Reader) -> tuple[str, int, int]:
    """Read one row of the tensor table: name, offset into the data and size, both in bytes."""
    name = reader.name()
    dimensions = reader.number("I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"{name} has {dimensions} dimensions")
    shape = [reader.number("Q") for _ in range(dimensions)]
    kind, offset = reader.number("I"), reader.number("Q")
    if kind not in _READABLE:
        label = _REFUSED.get(kind, f"of type {kind}")
        wanted = ", ".join(entry[0] for entry in _READABLE.values())
        raise CheckpointError(f"{path}: tensor {name} is {label}, which is not read: use a file of {wanted} tensors")
    label, block, size = _READABLE[kind]
    if not shape or 0 in shape or shape[0] % block:
        raise ValueError(f"{name} of type {label} has shape {shape[::-1]}")
    return name, offset, math.prod(shape) // block * size
