"""The rounds record: a header, one line a run, and the summary that is computed from them."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from mlxcel_engine.records.base import SCHEMA_VERSION, Record

VerdictWord = Literal["faster", "slower", "no difference", "unresolved"]
RunStatus = Literal["ok", "crashed", "timeout", "garbage"]
Metric = Literal["decode_tok_s", "ttft_ms"]


class ArmConfig(Record):
    """An arm as it was asked for. ``python`` None is the interpreter that runs ``rounds``."""

    name: str
    flags: list[str]
    variables: dict[str, str]
    python: str | None

    @property
    def text(self) -> str:
        """The arm as a user would write it."""
        interpreter = [] if self.python is None else [f"PYTHON:{self.python}"]
        words = [*interpreter, *(f"ENV:{name}={value}" for name, value in self.variables.items()), *self.flags]
        return f"{self.name}={shlex.join(words)!r}"


class RoundsConfig(Record):
    """What decides which runs there are and what each of them does; a resumed file must have the same."""

    arms: list[ArmConfig]
    model: str
    ctx: list[int]
    max_tokens: int
    extra: list[str]
    rounds: int
    null_every_arm: bool


class RoundsHeader(Record):
    """The first line of a rounds file, begun at ``created`` (UTC)."""

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    kind: Literal["rounds"] = "rounds"
    created: datetime
    config: RoundsConfig


class HostState(Record):
    """What the host did over ``interval_s`` seconds. None where the system does not tell.

    ``others_cpu`` is the CPU use of everything but the run, in cores, time taken by a hypervisor included.
    ``load`` is the 1-minute load average, our own runs included. ``throttled``: the processor or the GPU is slowed
    down for heat or power. ``gpu_use_pct`` and ``busiest``, the name of the program that took most, are only read while
    nothing of ours runs.
    """

    interval_s: float
    others_cpu: float
    busiest: str | None
    load: float
    memory_available_pct: float
    swap_used_bytes: int
    gpu_use_pct: float | None
    throttled: bool | None
    on_battery: bool | None


class Run(Record):
    """One fresh process. ``null`` runs repeat the arm's flags; ``arm`` is then still the source's name.

    ``round`` and ``position`` count from 0. ``busy`` says why the host counts as busy before or during the run;
    empty when it was quiet. ``waited_s`` was spent in the host gate. ``lines`` are the bench records as printed, one a
    measurement; those of a run that crashed or timed out came before that. ``output`` is the end of what a failed run
    wrote; empty when it went well.
    """

    kind: Literal["run"] = "run"
    round: int
    position: int
    arm: str
    null: bool
    command: list[str]
    started: datetime
    waited_s: float
    wall_s: float
    status: RunStatus
    exit_code: int | None
    reason: str
    output: str
    before: HostState
    during: HostState
    busy: list[str]
    lines: list[dict[str, Any]]


class Level(Record):
    """One arm's own figures in a cell over its ``n`` runs; tok/s or ms, as the metric says."""

    arm: str
    null: bool
    path: str
    ctx: int
    batch: int
    metric: Metric
    n: int
    median: float
    low: float
    high: float


class Comparison(Record):
    """One arm (or null arm) against its reference in one cell, over the ``n`` rounds in which both can be compared.

    Percentages are changes of the metric itself: 100 * (arm / reference - 1), so that a faster arm has a positive
    change of ``decode_tok_s`` and a negative one of ``ttft_ms``. ``low_pct`` and ``high_pct`` are the range,
    ``ci_*`` the bootstrap 95 % interval of the median. ``deltas_pct`` has a value a round, None where there is no pair.

    ``counted`` is the number of rounds that a claim may rest on (both runs and the null run there, host quiet),
    ``counted_median_pct`` the median of their deltas, which the gate judges; ``n`` and its figures are of busy rounds,
    too. ``ahead`` and ``behind`` say in how many of those that count the arm was faster or slower than the reference
    and its null run.
    ``unequal_tokens`` counts pairs left out for their token counts; ``same_tokens`` whether all pairs gave the same
    token stream, None without a pair. ``rounds_needed`` would probably resolve it; None where nothing is to resolve,
    or more than the search goes to. ``reason`` says what the verdict rests on.
    """

    arm: str
    reference: str
    null: bool
    path: str
    reference_path: str
    ctx: int
    batch: int
    metric: Metric
    n: int
    median_pct: float | None
    low_pct: float | None
    high_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    verdict: VerdictWord
    reason: str
    deltas_pct: list[float | None]
    counted: int
    counted_median_pct: float | None
    ahead: int
    behind: int
    unequal_tokens: int
    same_tokens: bool | None
    rounds_needed: int | None


class Drift(Record):
    """How fast the rounds were beside each other: the median over a round's runs of decode speed / its arm's median.

    In percent, one a round; None where the round has no measurement.
    """

    ctx: int
    batch: int
    levels_pct: list[float | None]


class Threshold(Record):
    """The threshold of a metric; ``pct`` None where it is automatic and no null pair was measured on a quiet host."""

    metric: Metric
    pct: float | None
    automatic: bool


class RoundsRecord(Record):
    """A whole rounds file and its summary. ``environment`` is each arm's own, as its first run with a figure has it."""

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    kind: Literal["rounds"] = "rounds"
    created: datetime
    environment: dict[str, dict[str, Any]]
    config: RoundsConfig
    thresholds: list[Threshold]
    rows: list[Comparison]
    levels: list[Level]
    drift: list[Drift]
    notes: list[str]
    runs: list[Run]
