"""The parity run: every case and prompt through every path, every pair compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from mlxcel_engine.parity.exam import Exam, Subject
from mlxcel_engine.parity.pairs import choose_pairs
from mlxcel_engine.paths import PathRequest
from mlxcel_engine.records.parity import ParityConfig, ParityRecord, PromptRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_engine.engine import FixedShapes
    from mlxcel_engine.errors import RunError
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.cases import Case
    from mlxcel_engine.parity.exam import Findings
    from mlxcel_engine.paths import DecodePath
    from mlxcel_engine.prompts import Prompt
    from mlxcel_engine.records.environment import Environment


@dataclass(frozen=True)
class ParityOptions:
    """How to run; ``noise_bound`` (nats) None takes the bound of the logprobs' dtype."""

    max_tokens: int
    prefill_chunk: int
    noise_bound: float | None = None
    all_pairs: bool = False
    locate: bool = False
    bisect: bool = False
    teacher_forced: bool = False
    expect_identical: bool = False
    allow_near_tie: bool = False
    invariant: FixedShapes | None = None


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
    cases: Sequence[Case],
    prompts: Sequence[Prompt],
    paths: Sequence[DecodePath],
    options: ParityOptions,
    observer: Observer,
    save: Callable[[ParityRecord], None],
) -> ParityOutcome:
    """Run every case for every prompt; ``save`` gets the record so far, incomplete, after each path."""
    now = datetime.now(UTC)
    record = ParityRecord(
        created=now,
        environment=environment,
        config=parity_config(loaded, cases, prompts, paths, options),
        complete=False,
        rows=[],
        forced=[],
        streams=[],
    )
    pairs = choose_pairs(
        [path.name for path in paths], every=options.all_pairs, invariant=options.invariant is not None
    )
    failures: list[RunError] = []

    def found(new: Findings) -> None:
        nonlocal record
        record = record.model_copy(
            update={
                "rows": record.rows + new.rows,
                "forced": record.forced + new.forced,
                "streams": record.streams + new.streams,
            }
        )
        failures.extend(new.failures)
        save(record)

    for case in cases:
        for prompt in prompts:
            request = PathRequest(
                prompt, options.max_tokens, options.prefill_chunk, case.sampling, invariant=options.invariant
            )
            subject = Subject(loaded, case.name, request, tuple(paths), tuple(pairs))
            Exam(subject, options, observer, found).run()
    record = record.model_copy(update={"complete": True})
    save(record)
    return ParityOutcome(record, tuple(failures))


def parity_config(
    loaded: LoadedModel,
    cases: Sequence[Case],
    prompts: Sequence[Prompt],
    paths: Sequence[DecodePath],
    options: ParityOptions,
) -> ParityConfig:
    """What a run is asked for, as its record says it."""
    return ParityConfig(
        model=loaded.record,
        prompts=[
            PromptRecord(name=p.name, text=p.text, ids=list(p.ids), sha256=p.sha256, chat_template=p.chat)
            for p in prompts
        ],
        max_tokens=options.max_tokens,
        cases=[case.record() for case in cases],
        paths=[path.name for path in paths],
        all_pairs=options.all_pairs,
        prefill_chunk=options.prefill_chunk,
        noise_bound=options.noise_bound,
        expect_identical=options.expect_identical,
        allow_near_tie=options.allow_near_tie,
        invariant=None if options.invariant is None else str(options.invariant),
    )
