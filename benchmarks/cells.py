"""The cells of the baseline: each is one command of ``mlxcel-engine`` with a file of its own. No MLX.

Minutes are estimates on two cores of a CPU machine, for a plan of the day.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError

from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.parity import ParityRecord
from mlxcel_engine.records.rounds import RoundsConfig
from mlxcel_engine.rounds.arms import parse_arms, parse_extra
from mlxcel_engine.rounds.journal import read_journal
from mlxcel_engine.rounds.schedule import missing, slots_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Cell(Protocol):
    """A command and the file that it fills; ``trained`` is the checkpoint that would take a synthetic one's place."""

    @property
    def name(self) -> str:
        """What ``--only`` and the page call it."""

    @property
    def title(self) -> str:
        """What it measures, for a reader."""

    @property
    def minutes(self) -> int:
        """About how long it takes on two cores."""

    @property
    def trained(self) -> str | None:
        """The hub id of the trained checkpoint whose shapes a synthetic model has."""

    @property
    def file(self) -> str:
        """The file's name in the data folder."""

    def options(self, file: str, model: str | None = None) -> list[str]:
        """The command's words after ``mlxcel-engine``, written to ``file``; with another ``model``, on that one."""

    def done(self, file: Path) -> bool:
        """Whether ``file`` holds all of it.

        Raises:
            UsageError: it was made by another command.

        """


@dataclass(frozen=True)
class ParityCell:
    """Tokens of every path, compared; nothing is timed, so it needs no quiet host."""

    name: str
    title: str
    minutes: int
    flags: tuple[str, ...]
    model: str = "default"
    trained: str | None = None

    @property
    def file(self) -> str:
        """See :attr:`Cell.file`."""
        return f"{self.name}.json"

    def options(self, file: str, model: str | None = None) -> list[str]:
        """See :meth:`Cell.options`. The command replaces the file whole, so a cut run begins again."""
        return ["parity", "-m", model or self.model, *self.flags, "--json", file, "--force"]

    def done(self, file: Path) -> bool:
        """See :meth:`Cell.done`."""
        return read_parity(file) is not None


@dataclass(frozen=True)
class RoundsCell:
    """Arms compared in interleaved rounds behind the host gate; goes on where it was stopped."""

    name: str
    title: str
    minutes: int
    arms: Mapping[str, str]
    ctx: int
    tokens: int = 128
    rounds: int = 5
    extra: str = ""
    null_every_arm: bool = False
    model: str = "default"
    trained: str | None = None

    @property
    def file(self) -> str:
        """See :attr:`Cell.file`."""
        return f"{self.name}.jsonl"

    @property
    def config(self) -> RoundsConfig:
        """What the file's header has to say."""
        return RoundsConfig(
            arms=parse_arms([f"{name}={flags}" for name, flags in self.arms.items()]),
            model=self.model,
            ctx=[self.ctx],
            max_tokens=self.tokens,
            extra=parse_extra(self.extra),
            rounds=self.rounds,
            null_every_arm=self.null_every_arm,
        )

    def options(self, file: str, model: str | None = None) -> list[str]:
        """See :meth:`Cell.options`."""
        words = ["rounds", "-m", model or self.model, "--ctx", str(self.ctx), "-n", str(self.tokens)]
        for name, flags in self.arms.items():
            words += ["--arm", f"{name}={flags}"]
        words += ["--extra", self.extra] if self.extra else []
        words += ["--rounds", str(self.rounds), *(["--null-every-arm"] if self.null_every_arm else [])]
        return [*words, "--hostgate", "--out", file, "--resume"]

    def done(self, file: Path) -> bool:
        """See :meth:`Cell.done`. A run that failed was made; the page names it."""
        if not file.exists() or not file.stat().st_size:
            return False
        contents = read_journal(str(file))
        if contents.header.config != self.config:
            raise UsageError(f"{file} was made by another command than cell {self.name}; move it away")
        done = [(run.round, run.arm, run.null) for run in contents.runs]
        return not missing(slots_of(self.config), done)


def read_parity(file: Path) -> ParityRecord | None:
    """The record in ``file`` if it is complete; a run that was killed leaves an empty one, or a part.

    Raises:
        UsageError: it holds something else.

    """
    if not file.exists() or not file.stat().st_size:
        return None
    try:
        record = ParityRecord.model_validate_json(file.read_bytes())
    except ValidationError:
        raise UsageError(f"{file} is no parity record; move it away") from None
    return record if record.complete else None


def command_line(cell: Cell, model: str | None = None) -> str:
    """The command as a user would type it; with another ``model``, into a file of its own."""
    file = cell.file if model is None else f"trained-{cell.file}"
    return shlex.join(["mlxcel-engine", *cell.options(file, model)])


_STORAGES = {"dense": "--decode-storage dense", "paged": "--decode-storage paged"}
_PATHS = {
    "cli": "--path cli",
    "mlx-server": "--path mlx-server",
    **{name: f"--path server {flags}" for name, flags in _STORAGES.items()},
}
_CHUNKS = {"chunk-2048": "--prefill-chunk 2048", "chunk-512": "--prefill-chunk 512"}
_SERVERS = {"mlx-server": "--path mlx-server", "server": "--path server"}


def _default_cells() -> list[Cell]:
    return [
        ParityCell(
            "parity",
            "Parity of the default checkpoint: both cases, every pair of paths, 200 tokens",
            10,
            ("--all-pairs", "-n", "200"),
        ),
        RoundsCell("paths-256", "One stream at 256 tokens, path by path", 17, _PATHS, 256, null_every_arm=True),
        RoundsCell("paths-8192", "One stream at 8192 tokens, path by path", 80, _PATHS, 8192, rounds=3),
        *(
            RoundsCell(
                f"chunk-{path}",
                f"Prefill in chunks of 2048 or of 512: {path} at 4096 tokens",
                28,
                _CHUNKS,
                4096,
                tokens=32,
                extra=f"--path {path}",
            )
            for path in ("cli", "server")
        ),
        RoundsCell("storage-256", "Dense or paged KV at 256 tokens", 6, _STORAGES, 256, extra="--path server"),
        RoundsCell("storage-8192", "Dense or paged KV at 8192 tokens", 82, _STORAGES, 8192, extra="--path server"),
        RoundsCell("batch-4", "Four streams of 256 tokens", 8, _SERVERS, 256, 64, extra="--batch 4"),
        RoundsCell(
            "batch-8-ragged",
            "Eight streams of 128 to 1024 tokens",
            38,
            _SERVERS,
            1024,
            64,
            extra="--batch 8 --ragged",
        ),
    ]


def _synthetic_cells(key: str, model: str, trained: str, minutes: Mapping[str, int]) -> list[Cell]:
    """One stream and storage at 256 and 2048, and one round at 8192; fewer tokens, as a token takes long."""

    def cell(name: str, title: str, arms: Mapping[str, str], ctx: int, tokens: int = 32, rounds: int = 5) -> RoundsCell:
        extra = {"storage": "--path server", "once": "--label n=1"}.get(name, "")
        return RoundsCell(
            f"{key}-{name}-{ctx}",
            f"{model} (random weights): {title} at {ctx} tokens",
            minutes[f"{name}-{ctx}"],
            arms,
            ctx,
            tokens,
            rounds,
            extra,
            null_every_arm=(name, ctx) == ("paths", 256),
            model=model,
            trained=trained,
        )

    return [
        cell("paths", "one stream, path by path,", _PATHS, 256),
        cell("paths", "one stream, path by path,", _PATHS, 2048, rounds=3),
        cell("storage", "dense or paged KV", _STORAGES, 256),
        cell("storage", "dense or paged KV", _STORAGES, 2048),
        cell("once", "one round (n=1)", {"cli": "--path cli", "server": "--path server"}, 8192, tokens=16, rounds=1),
    ]


_SLOW = {"paths-256": 43, "paths-2048": 43, "storage-256": 16, "storage-2048": 43, "once-8192": 45}
_LESS_SLOW = {"paths-256": 26, "paths-2048": 26, "storage-256": 10, "storage-2048": 26, "once-8192": 30}

CELLS: list[Cell] = [
    *_default_cells(),
    *_synthetic_cells("qwen3", "synthetic:qwen3-1.7b", "mlx-community/Qwen3-1.7B-4bit", _SLOW),
    *_synthetic_cells("llama", "synthetic:llama-3.2-1b", "mlx-community/Llama-3.2-1B-Instruct-4bit", _LESS_SLOW),
]
THRESHOLD_CELL = "paths-256"  # its null arms, one of every arm, set the regression threshold
