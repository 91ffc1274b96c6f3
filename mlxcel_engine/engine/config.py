"""How an engine is built. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxcel_engine.engine.shapes import FixedShapes
from mlxcel_engine.errors import EngineError

Storage = Literal["dense", "paged"]


@dataclass(frozen=True)
class EngineConfig:
    """What an engine stores KV in, and how it reads it.

    ``blocks`` fixes the size of the paged pools (16 tokens a block); None lets them grow.

    ``exact`` keeps to what ``generate_step`` computes for a sequence alone: one call of MLX's attention a row, over its
    keys in one piece, MLX's exponentials. False lets a float32 model compute the same in other ways: decode rows share
    a call and a prefix, a prefill attends in blocks of queries, softmax, logprobs and SwiGLU take powers of two, a
    decode step's rope is one product, and with MKL a single row of a small model is padded to two. None decides: exact
    under the deterministic switch, whose promise an explicit False gives up, and on a GPU; on a CPU the other ways were
    measured to be faster.

    ``invariant`` makes a request's logits independent of its neighbours, of chunks, of the prompt cache and of the
    storage, by :class:`FixedShapes`; True takes those of the device, False is off, None is what ``MLXCEL_INVARIANT``
    says, off without it.
    """

    storage: Storage = "dense"
    blocks: int | None = None
    exact: bool | None = None
    invariant: FixedShapes | bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.exact, bool | None):
            raise EngineError(f"exact={self.exact!r}: give True, False or None")
        if not isinstance(self.invariant, FixedShapes | bool | None):
            raise EngineError(f"invariant={self.invariant!r}: give FixedShapes, True, False or None")
        if self.storage not in ("dense", "paged"):
            raise EngineError(f"storage {self.storage!r} is not known; give dense or paged")
        if self.blocks is not None and (self.storage != "paged" or self.blocks < 1):
            raise EngineError(f"blocks={self.blocks} needs storage paged and 1 or more; leave it out for dense")
