"""One case of one prompt: every path run, every pair compared as soon as both its streams are there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mlxcel_engine.parity.bisect import bisect
from mlxcel_engine.parity.collect import Collected, collect
from mlxcel_engine.parity.compare import NOISE_BOUNDS, Comparison, compare
from mlxcel_engine.parity.forced import compare_forced
from mlxcel_engine.parity.locate import locate
from mlxcel_engine.parity.pairs import still_needed
from mlxcel_engine.parity.rows import pair_row, stream_record
from mlxcel_engine.parity.scores import make_scorer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlxcel_engine.errors import RunError
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.pairs import Pair
    from mlxcel_engine.parity.run import Observer, ParityOptions
    from mlxcel_engine.paths import DecodePath, PathRequest
    from mlxcel_engine.records.parity import ForcedRow, ParityRow, StreamRecord

_DIAGNOSED = ("drift", "near-tie", "diverged")


@dataclass(frozen=True)
class Subject:
    """What is examined: one request, on ``paths``, of which ``pairs`` are rows."""

    loaded: LoadedModel
    case: str
    request: PathRequest
    paths: tuple[DecodePath, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Findings:
    """What became known with one more path."""

    rows: list[ParityRow] = field(default_factory=list)
    forced: list[ForcedRow] = field(default_factory=list)
    streams: list[StreamRecord] = field(default_factory=list)
    failures: list[RunError] = field(default_factory=list)


class Exam:
    """Runs the paths one after the other; ``found`` hears of each.

    The logprobs of a stream, tokens x vocabulary x 4 bytes, are kept until its last pair is compared and no longer.
    """

    def __init__(
        self, subject: Subject, options: ParityOptions, observer: Observer, found: Callable[[Findings], None]
    ) -> None:
        self._subject = subject
        self._options = options
        self._observer = observer
        self._found = found
        self._score = make_scorer(subject.request.sampling, subject.request.prompt.ids)

    def run(self) -> None:
        """Run every path, then each again over the first stream's tokens if that was asked for."""
        subject = self._subject
        reference, tokens = "", tuple[int, ...]()
        for collected, ready in self._sweep(subject.request, subject.case):
            if not tokens:
                reference, tokens = collected.stream.path, collected.stream.ids
            rows = [self._row(left, right) for left, right in ready]
            streams = [stream_record(subject.case, subject.request.prompt.name, collected)]
            self._found(Findings(rows=rows, streams=streams, failures=_failures(collected)))
            del collected, ready  # not to be held while the next path runs
        if not self._options.teacher_forced or not tokens:
            return
        forced = replace(subject.request, sampling=replace(subject.request.sampling, forced=tokens))
        for collected, ready in self._sweep(forced, f"{subject.case} (forced)"):
            forced_rows = [self._forced_row(reference, left, right) for left, right in ready]
            self._found(Findings(forced=forced_rows, failures=_failures(collected)))
            del collected, ready

    def _sweep(self, request: PathRequest, label: str) -> Iterator[tuple[Collected, list[tuple[Collected, Collected]]]]:
        """Run every path; yields its stream, and the pairs that it completes."""
        held: dict[str, Collected] = {}
        done: set[str] = set()
        for path in self._subject.paths:
            held[path.name] = self._collect(path, request, label)
            done.add(path.name)
            ready = [pair for pair in self._subject.pairs if path.name in pair and done.issuperset(pair)]
            yield held[path.name], [(held[left], held[right]) for left, right in ready]
            needed = still_needed(self._subject.pairs, done)
            held = {name: kept for name, kept in held.items() if name in needed}

    def _collect(self, path: DecodePath, request: PathRequest, label: str) -> Collected:
        self._observer.path_started(label, request.prompt.name, path.name, request.max_tokens)
        return collect(path, self._subject.loaded, request, self._observer.token)

    def _compare(self, left: Collected, right: Collected) -> Comparison:
        return compare(left.stream, right.stream, _bound(left, right, self._options.noise_bound), self._score)

    def _row(self, left: Collected, right: Collected) -> ParityRow:
        subject, found = self._subject, self._compare(left, right)
        prompt = subject.request.prompt.name
        row = pair_row(subject.case, prompt, left, right, found, subject.loaded.text_of)
        if found.verdict not in _DIAGNOSED:
            return row
        by_name = {path.name: path for path in subject.paths}
        sides = (by_name[left.stream.path], left), (by_name[right.stream.path], right)
        if self._options.locate:
            step = _telling_step(found, left, right)
            row = row.model_copy(update={"located": locate(subject.loaded, subject.request, *sides, step)})
        if self._options.bisect:

            def run(path: DecodePath, request: PathRequest) -> Collected:
                return self._collect(path, request, f"{subject.case} (bisect)")

            row = row.model_copy(update={"bisected": bisect(subject.request, *sides, run, self._compare)})
        return row

    def _forced_row(self, reference: str, left: Collected, right: Collected) -> ForcedRow:
        pair = left.stream.path, right.stream.path
        prompt = self._subject.request.prompt.name
        return compare_forced(self._subject.case, prompt, pair, reference, left.stream, right.stream)


def _failures(collected: Collected) -> list[RunError]:
    return [] if collected.failure is None else [collected.failure]


def _bound(left: Collected, right: Collected, given: float | None) -> float:
    """The bound (nats) for the coarser of the dtypes that the two computed their logprobs in, unless one is given."""
    if given is not None:
        return given
    return max(NOISE_BOUNDS.get(side.dtype or "", NOISE_BOUNDS["float32"]) for side in (left, right))


def _telling_step(found: Comparison, left: Collected, right: Collected) -> int:
    """The step whose layers are compared: the divergent one, or of equal ids the first one with the largest difference.

    Where one stream goes on after the other's end there is no forward to compare at the divergent step.
    """
    last = min(len(left.stream.ids), len(right.stream.ids)) - 1
    if found.index is None:
        return found.differences.index(max(found.differences))
    return max(min(found.index, last), 0)
