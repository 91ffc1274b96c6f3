"""What a bench measures with: the loops, a clock, the device's memory. No MLX; a test can put its own in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from mlxcel_engine.bench.loops import DecodeLoop
    from mlxcel_engine.records.bench import BandwidthProbe
    from mlxcel_engine.records.environment import Environment
    from mlxcel_engine.records.model import ModelRecord


class Footprint(Protocol):
    """How many bytes decode reads."""

    @property
    def step_weight_bytes(self) -> int | None:
        """Bytes of weights that a step reads, or None where that depends on the tokens."""
        ...

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of one stream of ``tokens`` tokens."""
        ...


class Memory(Protocol):
    """The device's memory, as far as a measurement touches it."""

    def settle(self) -> None:
        """Wait for all queued work and give unused memory back, so that every pass begins alike."""
        ...

    def begin_peak(self) -> None:
        """Forget the peak so far."""
        ...

    def peak(self) -> int:
        """Bytes in use at the most since :meth:`begin_peak`, weights included."""
        ...


@dataclass(frozen=True)
class Rig:
    """Everything that a run needs; ``clock`` gives seconds, ``now`` the time of day (UTC)."""

    environment: Environment
    model: ModelRecord
    loops: Sequence[DecodeLoop]
    footprint: Footprint
    memory: Memory
    clock: Callable[[], float]
    now: Callable[[], datetime]
    probe: Callable[[], BandwidthProbe]
