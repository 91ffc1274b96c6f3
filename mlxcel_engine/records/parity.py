"""The parity record: one row per pair, and beside the rows the streams that they compare."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

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


class ParityRow(Record):
    """One pair. ``index`` is the first step at which the two streams differ, counted from 0.

    ``max_abs_logprob_diff`` is the noise: the largest difference (nats) on the steps before they differ, on all
    steps if they never do; None when there is no such step.
    """

    case: str
    prompt: str
    left: str
    right: str
    verdict: VerdictName
    reason: str
    index: int | None
    left_token: int | None
    right_token: int | None
    left_text: str | None
    right_text: str | None
    logits: LogitsClass | None
    max_abs_logprob_diff: float | None
    evidence: PairEvidence


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


class ParityConfig(Record):
    """What was asked for; ``noise_bound`` None takes each pair's bound by the dtype of its logprobs."""

    model: ModelRecord
    prompts: list[PromptRecord]
    max_tokens: int
    cases: list[str]
    paths: list[str]
    prefill_chunk: int
    noise_bound: float | None
    expect_identical: bool
    allow_near_tie: bool


class ParityRecord(Record):
    """The whole of a parity run, begun at ``created`` (UTC)."""

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    kind: Literal["parity"] = "parity"
    created: datetime
    environment: Environment
    config: ParityConfig
    rows: list[ParityRow]
    streams: list[StreamRecord]
