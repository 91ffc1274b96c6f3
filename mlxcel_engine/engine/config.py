"""How an engine is built. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxcel_engine.errors import EngineError

Storage = Literal["dense", "paged"]


@dataclass(frozen=True)
class EngineConfig:
    """What an engine stores KV in, and how it reads it.

    ``blocks`` fixes the size of the paged pools (16 tokens a block); None lets them grow. ``read_together`` lets decode
    rows of a float32 model share a call and a prefix, and puts a softmax together from parts; False keeps to one call
    of MLX's attention a row over its keys in one piece. None decides: together on a CPU, where it was measured to be
    faster, but not under the deterministic switch, whose promise an explicit True gives up.
    """

    storage: Storage = "dense"
    blocks: int | None = None
    read_together: bool | None = None

    def __post_init__(self) -> None:
        if self.storage not in ("dense", "paged"):
            raise EngineError(f"storage {self.storage!r} is not known; give dense or paged")
        if self.blocks is not None and (self.storage != "paged" or self.blocks < 1):
            raise EngineError(f"blocks={self.blocks} needs storage paged and 1 or more; leave it out for dense")
