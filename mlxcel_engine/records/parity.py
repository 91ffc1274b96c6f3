"""The parity record: one row per pair, and beside the rows the streams that they compare."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mlxcel_engine.records.base import SCHEMA_VERSION, Record, SchemaVersion
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.records.evidence import Evidence
from mlxcel_engine.records.model import ModelRecord

VerdictName = Literal["identical", "drift", "near-tie", "diverged", "n/a", "invalid"]
LogitsClass = Literal["bitwise", "close", "differ"]


class PairEvidence(Record):
    """The evidence of both sides; None for a side that did not run."""

    left: Evidence | None
    """The left path's."""
    right: Evidence | None
    """The right path's."""


class LayerDifference(Record):
    """How far apart one layer's output was on the two sides."""

    layer: str
    """``layer N``, or ``logits``."""
    largest: float
    """The largest absolute difference."""
    relative: float
    """That over the left side's largest absolute value."""


class Located(Record):
    """Where two paths part in one forward, the left stream's tokens forced on both up to it."""

    step: int
    """The forward that was compared, counted from 0."""
    first: str | None
    """The first layer whose output differs at all; None when nothing does."""
    jump: str | None
    """The layer at which the relative difference grows most; None when nothing differs."""
    layers: list[LayerDifference]
    """All of them, in the order of the model."""
    problem: str | None
    """Why the layers could not be compared."""

    @model_validator(mode="after")
    def _refuse_unknown_layers(self) -> Self:
        if not {self.first, self.jump} <= {None, *(layer.layer for layer in self.layers)}:
            raise ValueError(f"{self.first} or {self.jump} is none of its layers")
        return self


class BisectTrial(Record):
    """One setting changed on one path of a pair, or on both."""

    side: str
    """The path that was changed, or ``both``."""
    change: str
    """Which setting, in words."""
    verdict: VerdictName
    """What came out."""
    index: int | None
    """The first divergent step then."""


class ParityRow(Record):
    """One pair.

    A gap is in nats of logprob, in a seeded case of the score times the temperature; infinite where a filter had
    dropped the other token.
    """

    case: str
    """Name of the case."""
    prompt: str
    """Name of the prompt."""
    left: str
    """Path."""
    right: str
    """Path."""
    verdict: VerdictName
    """How the pair compares."""
    reason: str
    """What the verdict rests on."""
    index: int | None = None
    """The first step at which the streams differ, counted from 0; None where they do not."""
    left_token: int | None = None
    """The left id there; None where its stream has ended."""
    right_token: int | None = None
    """The right one."""
    left_text: str | None = None
    """The left token as text."""
    right_text: str | None = None
    """The right one."""
    left_gap: float | None = None
    """How far the left token led the right one on the left side."""
    right_gap: float | None = None
    """How far the right token led the left one on the right side."""
    logits: LogitsClass | None = None
    """``bitwise`` equal, ``close`` (noise within the bound), or ``differ``."""
    max_abs_logprob_diff: float | None = None
    """The noise: the largest difference (nats) before the streams differ; None without such a step."""
    differences: list[float] = Field(default_factory=list)
    """The largest difference (nats) of each of these steps, and of the first divergent one."""
    located: Located | None = None
    """``--locate``: the layer."""
    bisected: list[BisectTrial] = Field(default_factory=list)
    """``--bisect``: the trials, until one agreed."""
    evidence: PairEvidence
    """What the two paths were seen to do."""


class ForcedRow(Record):
    """One pair of which both sides were fed the same tokens, compared at every step."""

    case: str
    """Name of the case."""
    prompt: str
    """Name of the prompt."""
    left: str
    """Path."""
    right: str
    """Path."""
    reference: str
    """The path whose tokens both were fed."""
    steps: int = 0
    """How many were compared."""
    max_abs_logprob_diff: float | None = None
    """The largest difference (nats)."""
    mean_abs_logprob_diff: float | None = None
    """The mean over steps of each step's mean over the vocabulary (nats)."""
    kl_max: float | None = None
    """Kullback-Leibler divergence of the right distribution from the left one (nats): the largest of a step."""
    kl_mean: float | None = None
    """Its mean over the steps."""
    top1_agreement: float | None = None
    """Share of steps whose likeliest token is the same."""
    reason: str = ""
    """Why a side cannot run; all figures are None then."""


class TopLogprob(Record):
    """One of the likeliest tokens of a step."""

    token: int
    """Id."""
    logprob: float
    """Nats."""


class StreamRecord(Record):
    """One path's answer."""

    case: str
    """Name of the case."""
    prompt: str
    """Name of the prompt."""
    path: str
    """What ran."""
    prompt_sha256: str
    """Hash of the prompt ids that the path was given."""
    ids: list[int]
    """Every sampled token, an ending EOS included."""
    text: str
    """Without the EOS."""
    finish_reason: str | None
    """``stop`` or ``length``; None where it did not end."""
    top_logprobs: list[list[TopLogprob]]
    """The five likeliest tokens of each step."""
    evidence: Evidence | None
    """What the path was seen to do; None where it did not run."""
    unavailable: str | None
    """Why the path cannot run this model."""
    invalid: str | None
    """Why it did not do what its name claims."""

    @model_validator(mode="after")
    def _refuse_steps_without_logprobs(self) -> Self:
        if len(self.ids) != len(self.top_logprobs):
            raise ValueError(f"{len(self.ids)} ids but logprobs of {len(self.top_logprobs)} steps")
        return self


class PromptRecord(Record):
    """A prompt."""

    name: str
    """What rows call it."""
    text: str
    """Before the template."""
    ids: list[int]
    """What every path gets."""
    sha256: str
    """Hash of the ids."""
    chat_template: bool
    """Made with it, else raw text."""


class EffectiveSampling(Record):
    """What of a case's sampling acts."""

    order: list[str]
    """The stages, in the order in which they do."""
    repeat_last_n: int
    """Tokens that the penalties look back over: 0 off, -1 all."""
    dry_penalty_last_n: int
    """The same of DRY."""
    seed: int | None
    """What the draws depend on; None where there are none."""


class CaseRecord(Record):
    """A case."""

    name: str
    """What rows call it."""
    sampling: dict[str, Any]
    """What its sampling was set to."""
    effective: EffectiveSampling
    """What of that acts."""


class ParityConfig(Record):
    """What was asked for."""

    model: ModelRecord
    """The checkpoint."""
    prompts: list[PromptRecord]
    """What was asked."""
    max_tokens: int
    """Tokens to generate at most."""
    cases: list[CaseRecord]
    """How it was sampled."""
    paths: list[str]
    """What ran."""
    all_pairs: bool
    """Every path was compared with every other one."""
    prefill_chunk: int
    """Prompt tokens that may go through the model at once."""
    noise_bound: float | None = Field(ge=0, allow_inf_nan=False)
    """Nats; None takes each pair's bound by the dtype of its logprobs."""
    expect_identical: bool
    """It was a gate."""
    allow_near_tie: bool
    """Near-ties passed it."""
    invariant: str | None = None
    """Width and chunk (``2,256``) of the invariant mode, None without it."""


class ParityRecord(Record):
    """The whole of a parity run."""

    schema_version: SchemaVersion = Field(default=SCHEMA_VERSION, alias="schema")
    """Version of this form."""
    kind: Literal["parity"] = "parity"
    """What it is a record of."""
    created: datetime
    """When the run began, in UTC."""
    environment: Environment
    """The machine and the software."""
    config: ParityConfig
    """What was asked for."""
    complete: bool
    """False while it runs, or when it was killed."""
    rows: list[ParityRow]
    """One a pair."""
    forced: list[ForcedRow]
    """``--teacher-forced``: one a pair."""
    streams: list[StreamRecord]
    """One a case, prompt and path."""
