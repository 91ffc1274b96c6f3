"""The cases of a run: how every path samples. No MLX."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.engine.sampling.config import SamplingConfig
from mlxcel_engine.engine.sampling.resolved import ResolvedSampling, resolve_sampling
from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.parity import CaseRecord, EffectiveSampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.engine.sampling.breakers import BreakerResolver

CASES = ("greedy", "seeded")
SAMPLING_CASE = "sampling"
"""The case of settings that a user gives."""
DEFAULT_SEED = 1234


@dataclass(frozen=True)
class Case:
    """A name for the rows, and one sampling for all paths."""

    name: str
    sampling: ResolvedSampling

    def record(self) -> CaseRecord:
        """What the record says of it; a bias of -inf is ``false``, so that it is JSON and ``--sampling`` takes it."""
        config = self.sampling.config
        settings = config.model_dump(mode="json")
        bias = {token: False if value == -math.inf else value for token, value in settings["logit_bias"].items()}
        return CaseRecord(
            name=self.name, sampling={**settings, "logit_bias": bias}, effective=EffectiveSampling(**config.effective())
        )


def case_configs(names: Sequence[str], seed: int, given: SamplingConfig | None) -> dict[str, SamplingConfig]:
    """The settings of the cases ``names``, and of one more for ``given``, whose seed is ``seed`` if it has none.

    Raises:
        UsageError: an unknown name, or no case at all.

    """
    known = dict(zip(CASES, (SamplingConfig(), SamplingConfig.seeded(seed)), strict=True))
    for name in names:
        if name not in known:
            raise UsageError(f"--cases {name!r}: no such case; give some of {', '.join(known)}")
    found = {name: config for name, config in known.items() if name in names}
    if given is not None:
        needs_seed = given.seed is None and not given.greedy
        found[SAMPLING_CASE] = given.model_copy(update={"seed": seed}) if needs_seed else given
    if not found:
        raise UsageError("there is no case to run; give --cases or --sampling")
    return found


def make_cases(
    configs: dict[str, SamplingConfig], breakers: BreakerResolver, eos_ids: frozenset[int]
) -> tuple[Case, ...]:
    """Resolve the settings for one model."""
    return tuple(Case(name, resolve_sampling(config, breakers, eos_ids)) for name, config in configs.items())
