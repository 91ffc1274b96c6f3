"""The paths of the invariant mode: one request with everything around it that must not change a bit of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mlxcel_engine.engine.kv.blocks import BLOCK_TOKENS
from mlxcel_engine.paths.scheduler import SchedulerPath, batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.engine import FixedShapes
    from mlxcel_engine.paths.base import DecodePath


def invariant_makers(shapes: FixedShapes) -> dict[str, Callable[[], DecodePath]]:
    """What makes each path, by its name; they come behind those of :func:`path_makers`.

    Batches that are narrower than the shapes, as wide, and wider; neighbours that are there first, that are cancelled,
    and one that takes the request's room; histories that end at, before and behind blocks and chunks.
    """
    wide = shapes.width + 1
    found: dict[str, Callable[[], DecodePath]] = {
        f"batch-{width}": partial(batch, width) for width in (2, shapes.width, wide) if width > 1
    }
    crowds = (
        SchedulerPath(f"paged-batch-{wide}", storage="paged", width=wide),
        SchedulerPath(f"batch-{wide}-first", width=wide, crowd="waits"),
        SchedulerPath(f"batch-{wide}-cancelled", width=wide, crowd="cancelled"),
        SchedulerPath("preempted", width=2, crowd="evicts"),
    )
    edges = (BLOCK_TOKENS, shapes.chunk, shapes.chunk + BLOCK_TOKENS, 2 * shapes.chunk)
    histories = sorted({edge + off for edge in edges for off in (-1, 0, 1)} - {0})
    hits = [SchedulerPath(f"cache-hit-{tokens}", cache="primed", history=tokens) for tokens in histories]
    found.update({path.name: partial(_same, path) for path in (*crowds, *hits)})
    return found


def _same(path: DecodePath) -> DecodePath:
    return path
