"""Measure one family: alone, in batches, over paged KV, over a forced batched view, on mlx-lm's own batch."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.engine import Engine, EngineConfig, families, supports_paged_decode
from mlxcel_engine.engine.kv.paged import PagedKv
from tests.conformance.traces import (
    EQUAL,
    RAGGED,
    STEPS,
    Gap,
    References,
    Row,
    engine_alone,
    engine_rows,
    history_effect,
    mlx_lm_rows,
    prompt,
    solo,
    widest,
)
from tests.tiny import tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import mlx.nn as nn

    from mlxcel_engine.engine.config import Storage

RIGHT, WRONG, RAISES, NONE = "right", "wrong", "raises", "n/a"
SEEDS = (0, 1)
_ALONE = (1, 2, 33)  # prompt lengths
_ALONE_CHUNK = 16
_LEAST_EFFECT = 1e-2  # of a prompt token on the logprobs; below it a row would prove nothing
_MESSAGE = 90  # characters


@dataclass(frozen=True)
class Verdict:
    """``word``: right, wrong, raises or n/a; ``detail``: how close, how far, or what was raised."""

    word: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.detail})" if self.detail else self.word


@dataclass(frozen=True)
class FamilyRow:
    """One row of the matrix. ``view`` is n/a where the layers keep caches of their own."""

    name: str
    architectures: tuple[str, ...]
    stepped: str
    alone: Verdict
    batch: Verdict
    paged: Verdict
    view: Verdict
    mlx_lm: Verdict

    @property
    def right(self) -> bool:
        """Whether the engine is right wherever it takes the family; what it batches, it pages."""
        paged = RIGHT if self.stepped == "batched" else NONE
        return (self.alone.word, self.batch.word, self.paged.word) == (RIGHT, RIGHT, paged)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What must not change: the verdicts' words, without their numbers, and how the family is stepped."""
        return (self.stepped, self.alone.word, self.batch.word, self.paged.word, self.view.word, self.mlx_lm.word)


def measure(name: str) -> FamilyRow:
    """Measure the family ``name``; what raises is a verdict, not an end."""
    model = tiny_model(name)
    references = References(model)
    found = families.architectures(model)
    own = sorted(found, key=lambda family: (family != _family(model), family))
    support = families.family_support(model)
    return FamilyRow(
        name,
        tuple(own),
        "batched" if support.batched else support.reason,
        _verdict(lambda: _alone(model)),
        _verdict(lambda: _in_batches(references)),
        _paged(references),
        forced_view(name),
        _verdict(lambda: widest(mlx_lm_rows(model), references.of())),
    )


def forced_view(name: str, seeds: tuple[int, ...] = SEEDS) -> Verdict:
    """Say whether the batched view is right for a family, whatever the engine's tables say of it."""
    models = [tiny_model(name, seed) for seed in seeds]
    with _forced(models[0]):
        if not families.family_support(models[0]).batched:
            return Verdict(NONE)
        return _verdict(lambda: _worst([_in_batches(References(model)) for model in models]))


def proven(rows: list[FamilyRow]) -> frozenset[str]:
    """Return the families whose batched view is right in every row; a wrong wrapper is the fault of what it wraps."""
    failed = [row for row in rows if row.view.word in (WRONG, RAISES)]
    wrong = {row.architectures[0] for row in failed if len(row.architectures) == 1}
    wrong |= {row.architectures[0] for row in failed if not wrong & set(row.architectures[1:])}
    return frozenset(row.architectures[0] for row in rows if row.view.word == RIGHT) - wrong


def _family(model: nn.Module) -> str:
    return type(model).__module__.rpartition(".")[2]


def _alone(model: nn.Module) -> Gap:
    if history_effect(model) < _LEAST_EFFECT:
        raise ValueError("its logits do not depend on the prompt")
    ids = {length: prompt(length) for length in _ALONE}
    alone = {length: solo(model, ids[length], STEPS, _ALONE_CHUNK) for length in ids}

    def gap(exact: bool) -> Gap:
        return widest({length: engine_alone(model, ids[length], _ALONE_CHUNK, exact) for length in ids}, alone)

    return _worst([gap(exact) for exact in (True, False)])


def _paged(references: References) -> Verdict:
    support = supports_paged_decode(references.model)
    if not support.ok:
        return Verdict(NONE, support.reason)

    return _verdict(lambda: _in_batches(references, "paged"))


def batch_gap(references: References, storage: Storage, rows: tuple[Row, ...], exact: bool) -> Gap:
    """Run ``rows`` in one engine; at last, paged KV keeps right books and holds nothing."""
    engine = Engine(references.model, EngineConfig(storage, exact=exact))
    gap = widest(engine_rows(engine, rows), references.of(rows))
    store = engine._kv
    if storage == "paged":
        assert isinstance(store, PagedKv)
        store.check_integrity()
        assert store.held_bytes == 0
    return gap


def _in_batches(references: References, storage: Storage = "dense") -> Gap:
    return _worst([batch_gap(references, storage, rows, exact) for rows in (RAGGED, EQUAL) for exact in (True, False)])


def _worst(gaps: list[Gap]) -> Gap:
    return max(gaps, key=lambda gap: (gap.first is not None, gap.largest))


def _verdict(run: Callable[[], Gap]) -> Verdict:
    try:
        gap = run()
    except Exception as error:
        message = " ".join(str(error).split())
        return Verdict(RAISES, f"{type(error).__name__}: {message[:_MESSAGE]}")
    return Verdict(RIGHT if gap.close else WRONG, str(gap))


@contextmanager
def _forced(model: nn.Module) -> Iterator[None]:
    """Take the model's architectures as proven; the engine's own obstacles of single models stay."""
    kept = families.BATCHED_FAMILIES, families.NOT_BATCHED
    families.BATCHED_FAMILIES, families.NOT_BATCHED = kept[0] | families.architectures(model), {}
    try:
        yield
    finally:
        families.BATCHED_FAMILIES, families.NOT_BATCHED = kept
