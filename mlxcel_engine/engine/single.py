"""One sequence from prompt to finish on an engine, with lookahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.engine.finish import FinishReason, StopRules, finish_step
from mlxcel_engine.engine.types import SequenceSpec, StepBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.core as mx

    from mlxcel_engine.engine.engine import Engine


@dataclass(frozen=True)
class GeneratedToken:
    """A token, the logprobs ``[V]`` (nats) it was sampled from, and why the sequence ends with it, if it does."""

    token: int
    logprobs: mx.array
    finish_reason: FinishReason | None


def generate(engine: Engine, spec: SequenceSpec, rules: StopRules) -> Iterator[GeneratedToken]:
    """Yield the tokens of one sequence; the next forward is queued before a token is read.

    Zero ``max_tokens`` yield nothing and forward nothing. The sequence is closed however the iteration ends.

    Raises:
        RunError: a step at which no token could be sampled.

    """
    if rules.max_tokens < 1:
        return
    sequence = engine.open(spec)
    try:
        for piece in engine.plan(sequence).pieces:
            engine.prefill(sequence, piece)
        batch = StepBatch((sequence,))
        pending = engine.submit(batch)
        for generated in range(1, rules.max_tokens + 1):
            ahead = engine.submit(batch) if generated < rules.max_tokens else None
            (row,) = engine.collect(pending).rows
            if row.error:
                raise row.error
            reason = finish_step(row.token, generated, rules)
            yield GeneratedToken(row.token, row.logprobs, reason)
            if reason is not None or ahead is None:
                return
            pending = ahead
    finally:
        engine.close(sequence)
