"""A rig that computes nothing: loops that take the times that a script gives them, on a clock that they move.

It stands in for a model behind the real command line, so that the whole output can be tested to the letter.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import cycle
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mlxcel_engine.bench.rig import Rig
from mlxcel_engine.bench.timing import StreamToken
from mlxcel_engine.errors import RunError, UsageError, one_line
from mlxcel_engine.records.base import Record
from mlxcel_engine.records.bench import BandwidthProbe
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.records.model import ModelRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mlxcel_engine.bench.loops import LoopSettings, Prompts, StreamTokens


class FakeTimes(Record):
    """A loop: ``prefill_ms`` a prompt token, then a step each ``step_ms``, over and over.

    ``eos_after`` tokens end a stream where EOS is heeded. ``calls`` are attention calls a step. ``forgets`` says that
    its prompt cache keeps nothing, ``unavailable`` why it cannot run, ``breaks`` what it raises after its first token.
    """

    storage: str
    chooses_storage: bool = False
    caches_prompts: bool = False
    forgets: bool = False
    prefill_ms: float
    step_ms: list[float]
    eos_after: int | None = None
    calls: int | None = None
    unavailable: str | None = None
    breaks: str | None = None


class FakeScript(Record):
    """Everything that is measured or looked up in a real run."""

    environment: Environment
    model: ModelRecord
    probe: BandwidthProbe
    step_weight_bytes: int | None
    kv_bytes_per_token: int
    peak_memory_bytes: int
    loops: dict[str, FakeTimes]


class _FakeHost:
    """Clock, memory and footprint in one."""

    def __init__(self, script: FakeScript) -> None:
        self.step_weight_bytes = script.step_weight_bytes
        self._script = script
        self.seconds = 0.0

    def clock(self) -> float:
        return self.seconds

    def kv_bytes(self, tokens: int) -> int:
        return self._script.kv_bytes_per_token * tokens

    def settle(self) -> None:
        """Nothing is queued."""

    def begin_peak(self) -> None:
        """There is one peak."""

    def peak(self) -> int:
        return self._script.peak_memory_bytes


class FakeLoop:
    """Implements :class:`~mlxcel_engine.bench.loops.DecodeLoop`."""

    def __init__(self, name: str, times: FakeTimes, host: _FakeHost) -> None:
        self.name, self.chooses_storage, self.caches_prompts = name, times.chooses_storage, times.caches_prompts
        self._times, self._host = times, host

    def unavailable(self, settings: LoopSettings) -> str | None:  # noqa: ARG002 - the script knows
        """See :meth:`DecodeLoop.unavailable`."""
        return self._times.unavailable

    @contextmanager
    def open(self, settings: LoopSettings) -> Iterator[FakeSession]:
        """See :meth:`DecodeLoop.open`."""
        yield FakeSession(self._times, self._host, settings)


class FakeSession:
    """Implements :class:`~mlxcel_engine.bench.loops.Session`."""

    def __init__(self, times: FakeTimes, host: _FakeHost, settings: LoopSettings) -> None:
        self.storage = times.storage
        self.chunk = settings.chunk
        self.attention_calls = None if times.calls is None else 0
        self.adopted_tokens = 0
        self._kept: set[tuple[int, ...]] = set()
        self._times, self._host, self._settings = times, host, settings

    def run(self, prompts: Prompts, max_tokens: int) -> StreamTokens:
        """See :meth:`Session.run`; all streams get their tokens in the same instant."""
        times, eos = self._times, bool(self._settings.eos_ids)
        stop = min(times.eos_after or max_tokens, max_tokens) if eos else max_tokens
        reason = "stop" if stop == times.eos_after and eos else "length"
        adopted = sum(len(prompt) - 1 for prompt in prompts if prompt in self._kept)
        self.adopted_tokens += adopted
        if self._settings.prompt_cache and not times.forgets:
            self._kept.update(prompts)
        self._host.seconds += (sum(map(len, prompts)) - adopted) * times.prefill_ms / 1e3
        self._settings.tell_prefill(sum(map(len, prompts)))
        for step, step_ms in zip(range(1, stop + 1), cycle(times.step_ms), strict=False):
            self._host.seconds += step_ms / 1e3
            if self.attention_calls is not None and times.calls is not None:
                self.attention_calls += times.calls
            for stream in range(len(prompts)):
                yield StreamToken(stream, step, reason if step == stop else None)
            if times.breaks is not None:
                raise RunError(times.breaks)


def make_fake_rig(file: Path, paths: Sequence[str]) -> Rig:
    """Make the rig that the script in ``file`` describes, with the loops of ``paths`` that it has.

    Raises:
        UsageError: the file cannot be read, or is no such script.

    """
    try:
        script = FakeScript.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise UsageError(f"--fake-path {file}: {one_line(error)}; give a script of a fake rig") from None
    host = _FakeHost(script)
    return Rig(
        environment=script.environment,
        model=script.model,
        loops=[FakeLoop(name, times, host) for name, times in script.loops.items() if name in paths],
        footprint=host,
        memory=host,
        clock=host.clock,
        now=lambda: datetime(2000, 1, 1, tzinfo=UTC),
        probe=lambda: script.probe,
    )
