"""The part of a request's settings that turns logprobs into a token; rows with equal ones are drawn together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mlxcel_engine.engine.sampling.resolved import ResolvedSampling


@dataclass(frozen=True)
class DrawSettings:
    """As in :class:`SamplingConfig`; hashable. ``eos_ids`` are those that XTC spares."""

    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: Literal[0, 1, 2]
    mirostat_tau: float
    mirostat_eta: float
    min_keep: int
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, sampling: ResolvedSampling) -> DrawSettings:
        """The draw's share of ``sampling``."""
        names = [name for name in cls.__dataclass_fields__ if name != "eos_ids"]
        values = {name: getattr(sampling.config, name) for name in names}
        spared = sorted(sampling.eos_ids) if sampling.config.xtc_probability else ()
        return cls(**values, eos_ids=tuple(spared))

    @property
    def greedy(self) -> bool:
        """Whether the draw is an argmax."""
        return self.temperature == 0

    @property
    def group(self) -> DrawSettings | str:
        """What rows have in common that can be drawn together."""
        return "greedy" if self.greedy else self

    @property
    def ordered(self) -> bool:
        """Whether a filter needs the tokens in order of their logprobs."""
        return (
            self.top_k > 0
            or self.typical_p < 1
            or self.top_p < 1
            or self.xtc_probability > 0
            or self.min_keep > 1
            or self.mirostat == 1
        )
