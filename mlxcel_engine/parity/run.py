"""The parity run: every prompt through every path, every pair compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mlxcel_engine.parity.collect import Collected, collect
from mlxcel_engine.parity.compare import NOISE_BOUNDS, Comparison, compare
from mlxcel_engine.paths import PathRequest
from mlxcel_engine.records.parity import (
    PairEvidence,
    ParityConfig,
    ParityRecord,
    ParityRow,
    PromptRecord,
    StreamRecord,
    TopLogprob,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_engine.errors import RunError
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.stream import Stream
    from mlxcel_engine.paths import DecodePath
    from mlxcel_engine.prompts import Prompt
    from mlxcel_engine.records.environment import Environment

# Which pairs are rows, in their order; a pair is shown where both of its paths run.
PAIRS = (("cli", "mlx-server"), ("cli", "engine"), ("mlx-server", "engine"))
_TOP = 5


@dataclass(frozen=True)
class ParityOptions:
    """How to run; ``noise_bound`` (nats) None takes the bound of the logprobs' dtype."""

    max_tokens: int
    prefill_chunk: int
    noise_bound: float | None = None
    expect_identical: bool = False
    allow_near_tie: bool = False


@dataclass(frozen=True)
class ParityOutcome:
    """The record, and what the paths that crashed raised; their streams stand in the record as invalid."""

    record: ParityRecord
    failures: tuple[RunError, ...]


class Observer(Protocol):
    """Hears of the progress of a run."""

    def path_started(self, case: str, prompt: str, path: str, max_tokens: int) -> None:
        """A path is about to prefill a prompt."""
        ...

    def token(self, count: int) -> None:
        """The path has generated ``count`` tokens."""
        ...


def run_parity(
    environment: Environment,
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    paths: Sequence[DecodePath],
    options: ParityOptions,
    observer: Observer,
    save: Callable[[ParityRecord], None],
) -> ParityOutcome:
    """Run the greedy case for every prompt; ``save`` gets the record so far after each."""
    config = _config(loaded, prompts, paths, options)
    now = datetime.now(UTC)
    record = ParityRecord(created=now, environment=environment, config=config, rows=[], streams=[])
    failures: list[RunError] = []
    for prompt in prompts:
        collected: dict[str, Collected] = {}
        for path in paths:
            observer.path_started("greedy", prompt.name, path.name, options.max_tokens)
            request = PathRequest(prompt, options.max_tokens, options.prefill_chunk)
            collected[path.name] = collect(path, loaded, request, observer.token)
        failures += [item.failure for item in collected.values() if item.failure is not None]
        rows = _rows("greedy", prompt, collected, loaded, options.noise_bound)
        streams = [_stream_record("greedy", prompt, item) for item in collected.values()]
        record = record.model_copy(update={"rows": record.rows + rows, "streams": record.streams + streams})
        save(record)
    return ParityOutcome(record, tuple(failures))


def _bound(left: Collected, right: Collected, given: float | None) -> float:
    """The bound (nats) for the coarser of the dtypes that the two computed their logprobs in, unless one is given."""
    if given is not None:
        return given
    return max(NOISE_BOUNDS.get(side.dtype or "", NOISE_BOUNDS["float32"]) for side in (left, right))


def _rows(
    case: str, prompt: Prompt, collected: dict[str, Collected], loaded: LoadedModel, noise_bound: float | None
) -> list[ParityRow]:
    def text(token: int | None) -> str | None:
        return None if token is None else str(loaded.tokenizer.decode([token]))

    rows = []
    for left, right in PAIRS:
        if left in collected and right in collected:
            sides = collected[left], collected[right]
            result: Comparison = compare(sides[0].stream, sides[1].stream, _bound(*sides, noise_bound))
            rows.append(
                ParityRow(
                    case=case,
                    prompt=prompt.name,
                    left=left,
                    right=right,
                    verdict=result.verdict,
                    reason=result.reason,
                    index=result.index,
                    left_token=result.left_token,
                    right_token=result.right_token,
                    left_text=text(result.left_token),
                    right_text=text(result.right_token),
                    logits=result.logits,
                    max_abs_logprob_diff=result.noise,
                    evidence=PairEvidence(left=sides[0].evidence, right=sides[1].evidence),
                )
            )
    return rows


def _stream_record(case: str, prompt: Prompt, collected: Collected) -> StreamRecord:
    stream = collected.stream
    return StreamRecord(
        case=case,
        prompt=prompt.name,
        path=stream.path,
        prompt_sha256=stream.prompt_sha256,
        ids=list(stream.ids),
        text=stream.text,
        finish_reason=stream.finish_reason,
        top_logprobs=_top_logprobs(stream),
        evidence=collected.evidence,
        unavailable=stream.unavailable,
        invalid=stream.invalid,
    )


def _top_logprobs(stream: Stream) -> list[list[TopLogprob]]:
    """The likeliest tokens of each step, the lowest id first on a tie."""
    steps = []
    for row in stream.logprobs:
        order = np.lexsort((np.arange(row.size), -row))[:_TOP]
        steps.append([TopLogprob(token=int(i), logprob=float(row[i])) for i in order])
    return steps


def _config(
    loaded: LoadedModel, prompts: Sequence[Prompt], paths: Sequence[DecodePath], options: ParityOptions
) -> ParityConfig:
    return ParityConfig(
        model=loaded.record,
        prompts=[
            PromptRecord(name=p.name, text=p.text, ids=list(p.ids), sha256=p.sha256, chat_template=p.chat)
            for p in prompts
        ],
        max_tokens=options.max_tokens,
        cases=["greedy"],
        paths=[path.name for path in paths],
        prefill_chunk=options.prefill_chunk,
        noise_bound=options.noise_bound,
        expect_identical=options.expect_identical,
        allow_near_tie=options.allow_near_tie,
    )
