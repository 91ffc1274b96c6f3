"""Tries the settings between two diverging paths one by one, until one brings agreement back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcel_engine.errors import one_line
from mlxcel_engine.paths import FOREIGN_FAILURES, variants_of
from mlxcel_engine.records.parity import BisectTrial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlxcel_engine.parity.collect import Collected
    from mlxcel_engine.parity.compare import Comparison
    from mlxcel_engine.paths import DecodePath, PathRequest

    Run = Callable[[DecodePath, PathRequest], Collected]
    Compare = Callable[[Collected, Collected], Comparison]
    Side = tuple[DecodePath, Collected]


@dataclass(frozen=True)
class _Trial:
    """What is run instead on ``side``, or on both."""

    side: str
    change: str
    left: DecodePath
    right: DecodePath
    request: PathRequest


def bisect(request: PathRequest, left: Side, right: Side, run: Run, compare: Compare) -> list[BisectTrial]:
    """Run the trials up to the first that agrees; empty where the two have no setting to change."""
    done: list[BisectTrial] = []
    try:
        trials = list(_trials(request, left[0], right[0], _pieces(left, right)))
    except FOREIGN_FAILURES as error:  # a path's variants may be another author's
        return [BisectTrial(side="both", change=f"their variants ({one_line(error)})", verdict="invalid", index=None)]
    for trial in trials:
        one = left[1] if trial.side == "right" else run(trial.left, trial.request)
        two = right[1] if trial.side == "left" else run(trial.right, trial.request)
        outcome = compare(one, two)
        done.append(BisectTrial(side=trial.side, change=trial.change, verdict=outcome.verdict, index=outcome.index))
        if outcome.verdict == "identical":
            break
    return done


def _trials(request: PathRequest, left: DecodePath, right: DecodePath, pieces: int) -> Iterator[_Trial]:
    """Each path's own settings (storage, batch width, cache), then the chunk, which both share."""
    for change, variant in variants_of(right).items():
        yield _Trial("right", change, left, variant, request)
    for change, variant in variants_of(left).items():
        yield _Trial("left", change, variant, right, request)
    if pieces > 2 and request.invariant is None:  # the last token is always a piece of its own
        whole = replace(request, prefill_chunk=len(request.prompt.ids))
        yield _Trial("both", "the prompt in one chunk", left, right, whole)


def _pieces(*sides: Side) -> int:
    return max((len(side[1].evidence.partition) for side in sides if side[1].evidence is not None), default=0)
