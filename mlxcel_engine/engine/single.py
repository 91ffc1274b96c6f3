"""One sequence from prompt to finish on an engine, with lookahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.engine.finish import token_budget
from mlxcel_engine.engine.progress import RowProgress
from mlxcel_engine.engine.types import SequenceSpec, StepBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import mlx.core as mx

    from mlxcel_engine.engine.engine import Engine
    from mlxcel_engine.engine.finish import Finish, FinishReason, StopRules
    from mlxcel_engine.engine.text import Detokenizer


@dataclass(frozen=True)
class GeneratedToken:
    """A token, the logprobs ``[V]`` (nats) it was sampled from, its text, and why the sequence ends with it, if so."""

    token: int
    logprobs: mx.array
    text: str
    finish: Finish | None

    @property
    def finish_reason(self) -> FinishReason | None:
        """The reason alone: ``stop``, ``length`` or None."""
        return self.finish.reason if self.finish is not None else None


def generate(
    engine: Engine,
    spec: SequenceSpec,
    rules: StopRules,
    detokenizer: Detokenizer | None = None,
    on_prefill: Callable[[int], None] | None = None,
) -> Generator[GeneratedToken, None, None]:
    """Yield the tokens of one sequence; the next forward is queued before a token is read, but for the first one.

    The first token is yielded as soon as it is there: queuing a forward takes as long as the forward on a CPU.
    Without a ``detokenizer`` the text is empty and ``rules`` may have no stop strings. Zero ``max_tokens`` yield
    nothing and forward nothing. ``on_prefill`` hears, after each piece, how many prompt tokens went through the model.
    The sequence is closed however the iteration ends.

    Raises:
        EngineError: on the first iteration, before any forward: the prompt fills the context, or the rules have stop
            strings and there is no detokenizer.
        RunError: a step at which no token could be sampled.

    """
    budget = token_budget(len(spec.prompt), rules)
    progress = RowProgress(rules, len(spec.prompt), detokenizer)
    if budget == 0:
        return
    sequence = engine.open(spec)
    try:
        for piece in engine.plan(sequence).pieces:
            engine.prefill(sequence, piece)
            if on_prefill is not None:
                on_prefill(piece.stop)
        batch = StepBatch((sequence,))
        pending = engine.submit(batch)
        for generated in range(1, budget + 1):
            ahead = engine.submit(batch) if 1 < generated < budget else None
            output = engine.collect(pending)
            if output.errors:
                raise output.errors[0].error
            (row,) = output.rows
            step = progress.advance(row.token)
            yield GeneratedToken(row.token, row.logprobs, step.text, step.finish)
            if step.finish is not None or generated == budget:
                return
            pending = ahead or engine.submit(batch)
    finally:
        engine.close(sequence)
