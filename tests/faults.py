"""Paths with faults in them, and what runs them: the negative controls of the parity tests."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlxcel_engine.device import select_device
from mlxcel_engine.engine.kv.partial import strided
from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.environment import collect_environment
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import PathRun, path_makers
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.prompts import encode_prompt
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.core as mx

    from mlxcel_engine.engine.kv.groups import Stretch
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath, PathRequest, TokenSteps
    from mlxcel_engine.records.environment import Environment
    from mlxcel_engine.records.parity import ParityRecord, ParityRow

LONG = "two roads diverged in a yellow wood, and sorry I could not travel both"


@dataclass
class Heard:
    """An observer that keeps what it hears."""

    phases: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def path_started(self, case: str, prompt: str, path: str, max_tokens: int) -> None:
        self.phases.append(f"{case} {prompt} {path} {max_tokens}")

    def token(self, count: int) -> None:
        self.tokens.append(count)


def strided_short(keys: mx.array, values: mx.array, rows: int, stretch: Stretch) -> tuple[mx.array, mx.array]:
    """Stands for ``strided``, one token short."""
    return strided(keys, values, rows, replace(stretch, tokens=max(stretch.tokens - 1, 1)))


@contextmanager
def scaled_projection(model: Any, factor: float, layer: int) -> Iterator[None]:
    """Scale one layer's output projection while the context is open."""
    projection = model.layers[layer].self_attn.o_proj
    weight = projection.weight
    projection.weight = weight * factor
    try:
        yield
    finally:
        projection.weight = weight


class FaultyEngine(EnginePath):
    """The engine path with one layer's output projection scaled."""

    def __init__(self, factor: float, layer: int = 1) -> None:
        self.factor, self.layer = factor, layer

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        run = super().run(loaded, request)

        def steps() -> TokenSteps:
            with scaled_projection(loaded.model, self.factor, self.layer):
                yield from run.steps

        return PathRun(steps(), run.evidence)


def run(
    loaded: LoadedModel,
    paths: list[DecodePath] | None = None,
    text: str = "two roads diverged",
    chat: bool = False,
    cases: list[Case] | None = None,
    **options: Any,
) -> ParityRecord:
    """A parity run of one prompt; a path that crashed raises."""
    prompt = encode_prompt(loaded.tokenizer, "p", text, chat=chat)
    settings = ParityOptions(max_tokens=options.pop("n", 24), prefill_chunk=options.pop("chunk", 2048), **options)
    chosen = own_paths() if paths is None else paths
    cases = [Case("greedy", GREEDY)] if cases is None else cases
    outcome = run_parity(here(), loaded, cases, [prompt], chosen, settings, Heard(), lambda _: None)
    for failure in outcome.failures:
        raise failure
    return outcome.record


def beside_cli(path: DecodePath, **options: Any) -> ParityRecord:
    """A parity run of ``path`` and ``cli``."""
    return run(options.pop("loaded", None) or tiny_loaded(), [path_makers(4)["cli"](), path], **options)


def found(record: ParityRecord) -> ParityRow:
    """The only row; the gate fails on it, and a near-tie that is let through does not help."""
    (one,) = record.rows
    assert judge(record.rows, allow_near_tie=True).exit_code == 1
    return one


def own_paths() -> list[DecodePath]:
    """The paths of one request at a time: ``cli``, ``mlx-server`` and ``engine``."""
    makers = path_makers(4)
    return [makers[name]() for name in ("cli", "mlx-server", "engine")]


def here() -> Environment:
    """This process."""
    return collect_environment("float32", select_device("auto"), os.environ)


def row(record: ParityRecord, left: str, right: str) -> ParityRow:
    return next(r for r in record.rows if (r.left, r.right) == (left, right))
