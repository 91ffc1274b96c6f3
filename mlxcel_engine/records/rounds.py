"""The rounds record: a header, one line a run, and the summary that is computed from them."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from mlxcel_engine.records.base import SCHEMA_VERSION, Record, SchemaVersion

VerdictWord = Literal["faster", "slower", "no difference", "unresolved"]
RunStatus = Literal["ok", "crashed", "timeout", "garbage"]
Metric = Literal["decode_tok_s", "ttft_ms"]
RunOrder = Literal["rotation", "williams"]


class ArmConfig(Record):
    """An arm as it was asked for."""

    name: str
    """What tables call it."""
    flags: list[str]
    """Of ``bench``."""
    variables: dict[str, str]
    """Environment variables of its processes."""
    python: str | None
    """Its interpreter; None is the one that runs ``rounds``."""

    @property
    def text(self) -> str:
        """The arm as a user would write it."""
        interpreter = [] if self.python is None else [f"PYTHON:{self.python}"]
        words = [*interpreter, *(f"ENV:{name}={value}" for name, value in self.variables.items()), *self.flags]
        return f"{self.name}={shlex.join(words)!r}"


class RoundsConfig(Record):
    """What decides which runs there are and what each of them does; a resumed file must have the same."""

    arms: list[ArmConfig]
    """The first one is the reference."""
    model: str
    """As it was asked for."""
    ctx: list[int]
    """Prompt tokens, one or more."""
    max_tokens: int
    """Tokens to generate."""
    extra: list[str]
    """Bench flags of every arm."""
    rounds: int
    """How many were asked for."""
    null_every_arm: bool
    """Every arm runs twice a round, not only the first."""


class RoundsHeader(Record):
    """The first line of a rounds file."""

    schema_version: SchemaVersion = Field(default=SCHEMA_VERSION, alias="schema")
    """Version of this form."""
    kind: Literal["rounds"] = "rounds"
    """What it is a record of."""
    created: datetime
    """When the file was begun, in UTC."""
    order: RunOrder = "rotation"
    """How the runs follow each other; a file that does not say is of the time when they rotated."""
    config: RoundsConfig
    """What was asked for."""


class HostState(Record):
    """What the host did over some seconds. None where the system does not tell."""

    interval_s: float
    """Seconds that were watched."""
    others_cpu: float
    """CPU use of everything but the run, in cores, time taken by a hypervisor included."""
    busiest: str | None
    """The program that took most; only read while nothing of ours runs."""
    load: float
    """The 1-minute load average, our own runs included."""
    memory_available_pct: float
    """Of the RAM."""
    swap_used_bytes: int
    """At the end of the interval."""
    gpu_use_pct: float | None
    """Only read while nothing of ours runs."""
    throttled: bool | None
    """The processor or the GPU is slowed down for heat or power."""
    on_battery: bool | None
    """No power cord."""


class Run(Record):
    """One fresh process."""

    kind: Literal["run"] = "run"
    """What the line of the file is."""
    round: int
    """Counted from 0."""
    position: int
    """In the round, counted from 0."""
    arm: str
    """Its name; of a null run, the source's."""
    null: bool
    """It repeats the arm's flags."""
    command: list[str]
    """Arguments of the process, without the interpreter."""
    started: datetime
    """In UTC."""
    waited_s: float
    """Seconds spent in the host gate before it."""
    wall_s: float
    """Seconds that the process lived."""
    status: RunStatus
    """How it ended; ``garbage``: it went well and printed no bench record, or printed without end."""
    exit_code: int | None
    """None after a time-out; beyond 128, a signal ended the process."""
    reason: str
    """Why it is not ok."""
    output: str
    """The end of what a failed run wrote, 4,000 characters of stdout and of stderr; empty when it went well."""
    before: HostState
    """The host just before it."""
    during: HostState
    """The host during it."""
    busy: list[str]
    """Why the host counts as busy before or during it; empty when it was quiet."""
    lines: list[dict[str, Any]]
    """The bench records as printed, one a measurement; of a run that failed, those that came before that."""


class Level(Record):
    """One arm's own figures in a cell."""

    arm: str
    """``NAME-null`` for the null runs."""
    null: bool
    """Whether it is a null arm."""
    path: str
    """What ran."""
    ctx: int
    """Prompt tokens."""
    batch: int
    """Streams at once."""
    metric: Metric
    """``decode_tok_s`` in tok/s, ``ttft_ms`` in ms; so are the figures."""
    n: int
    """Runs."""
    median: float
    """Over the runs."""
    low: float
    """The least of them."""
    high: float
    """The most."""


class Comparison(Record):
    """One arm (or null arm) against its reference in one cell.

    Percentages are changes of the metric itself: 100 * (arm / reference - 1), so that a faster arm has a positive
    change of ``decode_tok_s`` and a negative one of ``ttft_ms``.
    """

    arm: str
    """``NAME-null`` for a null arm."""
    reference: str
    """The first arm; of a null arm, its source."""
    null: bool
    """Whether it is a null arm."""
    path: str
    """The arm's."""
    reference_path: str
    """The reference's."""
    ctx: int
    """Prompt tokens."""
    batch: int
    """Streams at once."""
    metric: Metric
    """Which figure is compared."""
    n: int
    """Rounds in which both can be compared, busy ones too."""
    median_pct: float | None
    """Over these rounds."""
    low_pct: float | None
    """The least of them."""
    high_pct: float | None
    """The most."""
    ci_low_pct: float | None
    """Lower end of the bootstrap 95 % interval of the median."""
    ci_high_pct: float | None
    """Its upper end."""
    verdict: VerdictWord
    """What can be claimed."""
    reason: str
    """What the verdict rests on."""
    deltas_pct: list[float | None]
    """A value a round; None where there is no pair."""
    counted: int
    """Rounds that a claim may rest on: both runs and the null run there, host quiet."""
    counted_median_pct: float | None
    """The median of their deltas, which the gate judges."""
    ahead: int
    """In how many of those the arm was faster than the reference and its null run."""
    behind: int
    """In how many it was slower than both."""
    unequal_tokens: int
    """Pairs left out for their token counts."""
    same_tokens: bool | None
    """Whether all pairs gave the same token stream; None without a pair."""
    rounds_needed: int | None
    """Would probably resolve it; None where nothing is to resolve, or more than the search goes to."""


class Drift(Record):
    """How fast the rounds were beside each other: the median over a round's runs of decode speed / its arm's median."""

    ctx: int
    """Prompt tokens."""
    batch: int
    """Streams at once."""
    levels_pct: list[float | None]
    """Percent, one a round; None where the round has no measurement."""


class Threshold(Record):
    """The threshold of a metric."""

    metric: Metric
    """What it is for."""
    pct: float | None
    """Percent; None where it is automatic and no null pair was measured on a quiet host."""
    automatic: bool
    """Set by the null arms."""


class RoundsRecord(Record):
    """A whole rounds file and its summary."""

    schema_version: SchemaVersion = Field(default=SCHEMA_VERSION, alias="schema")
    """Version of this form."""
    kind: Literal["rounds"] = "rounds"
    """What it is a record of."""
    created: datetime
    """When the file was begun, in UTC."""
    environment: dict[str, dict[str, Any]]
    """Each arm's own, as its first run with a figure has it."""
    config: RoundsConfig
    """What was asked for."""
    thresholds: list[Threshold]
    """One a metric."""
    rows: list[Comparison]
    """Arms against the first one, null arms against their sources."""
    levels: list[Level]
    """Each arm's own figures."""
    drift: list[Drift]
    """Whether the machine kept its speed."""
    notes: list[str]
    """What a reader should know, in words."""
    runs: list[Run]
    """Every process, raw."""
