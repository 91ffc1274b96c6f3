"""Turns streams and comparisons into the rows of the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.records.parity import PairEvidence, ParityRow, StreamRecord, TopLogprob

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlxcel_engine.parity.collect import Collected
    from mlxcel_engine.parity.compare import Comparison

_TOP = 5


def pair_row(
    case: str, prompt: str, left: Collected, right: Collected, found: Comparison, decode: Callable[[int], str]
) -> ParityRow:
    """The row of a pair; ``decode`` gives a token's text."""

    def text(token: int | None) -> str | None:
        return None if token is None else decode(token)

    return ParityRow(
        case=case,
        prompt=prompt,
        left=left.stream.path,
        right=right.stream.path,
        verdict=found.verdict,
        reason=found.reason,
        index=found.index,
        left_token=found.left_token,
        right_token=found.right_token,
        left_text=text(found.left_token),
        right_text=text(found.right_token),
        left_gap=found.left_gap,
        right_gap=found.right_gap,
        logits=found.logits,
        max_abs_logprob_diff=found.noise,
        differences=list(found.differences),
        evidence=PairEvidence(left=left.evidence, right=right.evidence),
    )


def stream_record(case: str, prompt: str, collected: Collected) -> StreamRecord:
    """What is kept of a stream once its logprobs are let go."""
    stream = collected.stream
    return StreamRecord(
        case=case,
        prompt=prompt,
        path=stream.path,
        prompt_sha256=stream.prompt_sha256,
        ids=list(stream.ids),
        text=stream.text,
        finish_reason=stream.finish_reason,
        top_logprobs=[top_logprobs(row) for row in stream.logprobs],
        evidence=collected.evidence,
        unavailable=stream.unavailable,
        invalid=stream.invalid,
    )


def top_logprobs(row: NDArray[np.float32]) -> list[TopLogprob]:
    """The likeliest tokens of a row ``[V]``, the lowest id first on a tie; a NaN counts as the least likely."""
    ranked = np.where(np.isnan(row), -np.inf, row)
    least = np.partition(ranked, -min(_TOP, row.size))[-min(_TOP, row.size)]
    ids = np.flatnonzero(ranked >= least)
    chosen = ids[np.argsort(-ranked[ids], kind="stable")][:_TOP]
    return [TopLogprob(token=int(i), logprob=float(row[i])) for i in chosen]
