"""Rows, logits and draws that the sampling tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlxcel_engine.engine.sampling import Breakers, ResolvedSampling, RowSampler, SamplingConfig
from mlxcel_engine.engine.sampling.settings import DrawSettings

Floats32 = NDArray[np.float32]


def row(
    config: SamplingConfig,
    prompt: Sequence[int] = (0,),
    breakers: Sequence[Sequence[int]] = (),
    eos: Sequence[int] = (),
) -> RowSampler:
    return RowSampler(ResolvedSampling(config, Breakers.of(breakers), frozenset(eos)), prompt)


def settings(eos: Sequence[int] = (), **options: Any) -> DrawSettings:
    config = SamplingConfig(**{"temperature": 1.0, "seed": 0, **options})
    return DrawSettings.of(ResolvedSampling(config, eos_ids=frozenset(eos)))


def processed(config: SamplingConfig, logits: Floats32, history: Sequence[int], **kwargs: Any) -> Floats32:
    """The logits after the first part, with ``history`` as the prompt."""
    result: Floats32 = np.array(row(config, history, **kwargs).process(mx.array(logits)[None]))[0]
    return result


def normalized(logits: Floats32) -> Floats32:
    """Float32 logprobs, as the loops compute them."""
    values = mx.array(logits)
    result: Floats32 = np.array(values - mx.logsumexp(values, axis=-1, keepdims=True))
    return result


@st.composite
def logprobs(draw: st.DrawFn, largest: int = 50_000) -> Floats32:
    """Random logprobs: with or without ties and masked tokens, down to one token left."""
    size = draw(st.sampled_from([2, 3, 17, 300, largest]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.normal(0, draw(st.sampled_from([0.01, 1.0, 4.0])), size)
    if draw(st.booleans()):
        values = np.round(values, 1)  # ties
    masked = draw(st.sampled_from([0.0, 0.5, 1.0]))
    values[generator.random(size) < masked] = -np.inf
    values[draw(st.integers(0, size - 1))] = draw(st.sampled_from([0.0, 1.0, 8.0]))
    return normalized(values.astype(np.float32))
