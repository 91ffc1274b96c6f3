"""Records made by hand: five rounds of two arms and the reference's null arm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlxcel_engine.rounds.summary import summarise
from tests.rounds.fakes import config, header, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.records.rounds import Comparison, Metric, RoundsRecord, Run

A = [100.0, 101.0, 99.0, 100.0, 100.5]
NULL = [100.5, 100.0, 99.5, 99.0, 101.0]


def runs(b: Sequence[float | None], a: Sequence[float] = A, null: Sequence[float] = NULL, **more: Any) -> list[Run]:
    """Five rounds of a, b and a-null; ``more`` goes to b's runs."""
    made: list[Run] = []
    for number, (one, other, again) in enumerate(zip(a, b, null, strict=True)):
        made += [run(number, "a", one), run(number, "b", other, **more), run(number, "a", again, null=True)]
    return made


def summary(made: Sequence[Run], threshold: float | None = None, rounds: int = 5) -> RoundsRecord:
    return summarise(header(config("a", "b", rounds=rounds)), made, threshold)


def row(record: RoundsRecord, arm: str = "b", metric: Metric = "decode_tok_s") -> Comparison:
    (found,) = (row for row in record.rows if (row.arm, row.metric) == (arm, metric))
    return found


def busy_in(made: Sequence[Run], *rounds: int) -> list[Run]:
    return [one.model_copy(update={"busy": ["others"] if one.round in rounds else []}) for one in made]


def with_lines(made: Sequence[Run], arm: str, *more: dict[str, Any]) -> list[Run]:
    return [one.model_copy(update={"lines": [*one.lines, *more]}) if one.arm == arm else one for one in made]


def line(path: str, *, reason: str | None = None, speed: float = 100.0) -> dict[str, Any]:
    """A line of bench: a row of ``path``, or why there is none."""
    (made,) = run(0, "x", speed, path=path).lines
    return (
        made if reason is None else {**made, "rows": [], "unmeasured": [{"path": path, "ctx": 256, "reason": reason}]}
    )
