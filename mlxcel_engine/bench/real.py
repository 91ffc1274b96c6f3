"""The rig of a real run: a loaded model, MLX's device, the wall clock."""

from __future__ import annotations

import gc
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.bench.footprint import measure_footprint
from mlxcel_engine.bench.loops.cli import CliLoop
from mlxcel_engine.bench.loops.engine import EngineLoop
from mlxcel_engine.bench.loops.mlx_server import MlxServerLoop
from mlxcel_engine.bench.loops.server import ServerLoop
from mlxcel_engine.bench.probe import probe_bandwidth
from mlxcel_engine.bench.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.bench.loops import DecodeLoop
    from mlxcel_engine.device import Device
    from mlxcel_engine.engine import FixedShapes
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.records.environment import Environment


class DeviceMemory:
    """MLX's own account of its memory. Implements :class:`~mlxcel_engine.bench.rig.Memory`."""

    def settle(self) -> None:
        """See :meth:`Memory.settle`; mlx-lm's loops leave a forward queued on a stream of their own."""
        from mlx_lm.generate import generation_stream

        mx.synchronize(generation_stream)
        mx.synchronize()
        gc.collect()
        mx.clear_cache()

    def begin_peak(self) -> None:
        """See :meth:`Memory.begin_peak`."""
        mx.reset_peak_memory()

    def peak(self) -> int:
        """See :meth:`Memory.peak`."""
        return int(mx.get_peak_memory())


def make_rig(
    environment: Environment,
    loaded: LoadedModel,
    device: Device,
    paths: Sequence[str],
    shapes: FixedShapes | None = None,
) -> Rig:
    """Make the rig of ``loaded`` with the loops of ``paths``, in the order of the tables.

    With ``shapes``, our own loops are there in the invariant mode, too.
    """
    loops: list[DecodeLoop] = [CliLoop(loaded), MlxServerLoop(loaded), EngineLoop(loaded), ServerLoop(loaded)]
    if shapes is not None:
        loops += [EngineLoop(loaded, shapes), ServerLoop(loaded, shapes)]
    return Rig(
        environment=environment,
        model=loaded.record,
        loops=[loop for loop in loops if loop.name.removesuffix("-invariant") in paths],
        footprint=measure_footprint(loaded.model),
        memory=DeviceMemory(),
        clock=time.perf_counter,
        now=lambda: datetime.now(UTC),
        probe=lambda: probe_bandwidth(device, loaded.record.dtype),
    )
