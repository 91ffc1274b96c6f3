"""How an engine is built. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxcel_engine.errors import EngineError

Storage = Literal["dense", "paged"]


@dataclass(frozen=True)
class EngineConfig:
    """``blocks`` fixes the size of the paged pools (16 tokens a block); None lets them grow."""

    storage: Storage = "dense"
    blocks: int | None = None

    def __post_init__(self) -> None:
        if self.storage not in ("dense", "paged"):
            raise EngineError(f"storage {self.storage!r} is not known; give dense or paged")
        if self.blocks is not None and (self.storage != "paged" or self.blocks < 1):
            raise EngineError(f"blocks={self.blocks} needs storage paged and 1 or more; leave it out for dense")
