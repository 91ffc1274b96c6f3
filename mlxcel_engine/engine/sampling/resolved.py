"""A request's sampling with nothing left open: the seed drawn, breakers as ids, EOS ids known. No MLX."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcel_engine.engine.sampling.breakers import Breakers
from mlxcel_engine.engine.sampling.config import SamplingConfig
from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mlxcel_engine.engine.sampling.breakers import BreakerResolver


@dataclass(frozen=True)
class ResolvedSampling:
    """What a :class:`RowSampler` is built from; its config has a seed unless it is greedy.

    ``forced`` tokens are taken instead of the drawn ones at the first positions (teacher forcing): logprobs and
    history are those of a sequence that generated them. Mirostat still follows its own draws.
    """

    config: SamplingConfig = field(default_factory=SamplingConfig)
    breakers: Breakers = field(default_factory=Breakers)
    eos_ids: frozenset[int] = frozenset()
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.config.seed is None and not self.config.greedy:
            seeded = self.config.model_copy(update={"seed": secrets.randbits(64)})
            object.__setattr__(self, "config", seeded)


GREEDY = ResolvedSampling()


def resolve_sampling(
    config: SamplingConfig, breakers: BreakerResolver | None = None, eos_ids: Collection[int] = ()
) -> ResolvedSampling:
    """Draw a seed where the config has none and turn DRY's breakers into ids.

    Raises:
        UsageError: DRY with breakers, and nothing to resolve them with.

    """
    ids = Breakers()
    if config.dry and config.dry_sequence_breakers:
        if breakers is None:
            raise UsageError("dry_sequence_breakers need a tokenizer to become token ids; give one, or no breakers")
        ids = breakers(config.dry_sequence_breakers)
    return ResolvedSampling(config, ids, frozenset(eos_ids))
