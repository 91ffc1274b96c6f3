"""The parity record: one row per pair, and beside the rows the streams that they compare."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from mlxcel_engine.records.base import SCHEMA_VERSION, Record
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.records.evidence import Evidence
from mlxcel_engine.records.model import ModelRecord

VerdictName = Literal["identical", "drift", "near-tie", "diverged", "n/a", "invalid"]
LogitsClass = Literal["bitwise", "close", "differ"]


class PairEvidence(Record):
    """The evidence of both sides; None for a side that did not run."""

    left: Evidence | None
    right: Evidence | None


class LayerDifference(Record):
    """How far apart one layer's output was on the two sides.

    ``largest`` is the largest absolute difference, ``relative`` that over the left side's largest absolute value.
    """

    layer: str
    largest: float
    relative: float


class Located(Record):
    """Where two paths part in one forward, the left stream's tokens forced on both up to ``step``.

    ``first`` is the first layer whose output differs at all, ``jump`` the one at which the relative difference grows
    most; None when nothing differs. ``problem`` says why the layers could not be compared.
    """

    step: int
    first: str | None
    jump: str | None
    layers: list[LayerDifference]
    problem: str | None


class BisectTrial(Record):
    """One setting changed on a path (``side``) of a pair, or on both, and the verdict that came out."""

    side: str
    change: str
    verdict: VerdictName
    index: int | None


class ParityRow(Record):
    """One pair. ``index`` is the first step at which the two streams differ, counted from 0.

    ``max_abs_logprob_diff`` is the noise: the largest difference (nats) on the steps before they differ, on all
    steps if they never do; None when there is no such step. ``differences`` has the largest one of each of these
    steps and of the first divergent one. The gaps are how far each side's token led the other's there (nats of logprob,
    in a seeded case of the score times the temperature); infinite where a filter had dropped the other.
    """

    case: str
    prompt: str
    left: str
    right: str
    verdict: VerdictName
    reason: str
    index: int | None = None
    left_token: int | None = None
    right_token: int | None = None
    left_text: str | None = None
    right_text: str | None = None
    left_gap: float | None = None
    right_gap: float | None = None
    logits: LogitsClass | None = None
    max_abs_logprob_diff: float | None = None
    differences: list[float] = Field(default_factory=list)
    located: Located | None = None
    bisected: list[BisectTrial] = Field(default_factory=list)
    evidence: PairEvidence


class ForcedRow(Record):
    """One pair of which both sides were fed the tokens of ``reference``, compared at every one of its ``steps``.

    Differences of logprobs in nats: the largest one, and the mean over steps of each step's mean over the vocabulary.
    ``kl`` is Kullback-Leibler's divergence of the right distribution from the left one (nats). ``top1_agreement`` is
    the share of steps whose likeliest token is the same. All None where a side cannot run, for ``reason``.
    """

    case: str
    prompt: str
    left: str
    right: str
    reference: str
    steps: int = 0
    max_abs_logprob_diff: float | None = None
    mean_abs_logprob_diff: float | None = None
    kl_max: float | None = None
    kl_mean: float | None = None
    top1_agreement: float | None = None
    reason: str = ""


class TopLogprob(Record):
    """One of the likeliest tokens of a step; ``logprob`` in nats."""

    token: int
    logprob: float


class StreamRecord(Record):
    """One path's answer. ``ids`` holds every sampled token, an ending EOS included; ``text`` leaves it out."""

    case: str
    prompt: str
    path: str
    prompt_sha256: str
    ids: list[int]
    text: str
    finish_reason: str | None
    top_logprobs: list[list[TopLogprob]]
    evidence: Evidence | None
    unavailable: str | None
    invalid: str | None


class PromptRecord(Record):
    """A prompt: its ``ids``, whose hash is ``sha256``, made with the chat template or as raw text."""

    name: str
    text: str
    ids: list[int]
    sha256: str
    chat_template: bool


class CaseRecord(Record):
    """A case: what its sampling was set to, and what of that acts (stages in order, windows, seed)."""

    name: str
    sampling: dict[str, Any]
    effective: dict[str, Any]


class ParityConfig(Record):
    """What was asked for; ``noise_bound`` None takes each pair's bound by the dtype of its logprobs."""

    model: ModelRecord
    prompts: list[PromptRecord]
    max_tokens: int
    cases: list[CaseRecord]
    paths: list[str]
    all_pairs: bool
    prefill_chunk: int
    noise_bound: float | None
    expect_identical: bool
    allow_near_tie: bool


class ParityRecord(Record):
    """The whole of a parity run, begun at ``created`` (UTC); not ``complete`` while it runs or when it was killed."""

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    kind: Literal["parity"] = "parity"
    created: datetime
    environment: Environment
    config: ParityConfig
    complete: bool
    rows: list[ParityRow]
    forced: list[ForcedRow]
    streams: list[StreamRecord]
