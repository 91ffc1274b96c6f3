"""What a seeded draw was the largest of, computed anew from a stream's logprobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlxcel_engine.engine.sampling import RowSampler
from mlxcel_engine.engine.sampling.batch import draw
from mlxcel_engine.parity.compare import greedy_score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxcel_engine.engine.sampling import ResolvedSampling
    from mlxcel_engine.parity.compare import Scorer
    from mlxcel_engine.parity.stream import Stream


def make_scorer(sampling: ResolvedSampling, prompt: tuple[int, ...]) -> Scorer:
    """Score by the logprobs if greedy, else by tempered logprob plus the noise of seed and position, in nats.

    The sampler is ours and not the path's: a path that draws in another way took a token that is not its own best.
    """
    if sampling.config.greedy:
        return greedy_score

    def score(stream: Stream, index: int) -> NDArray[np.float32]:
        row = RowSampler(sampling, prompt)
        if sampling.config.mirostat:  # its state follows the draws before
            for logprobs in stream.logprobs[:index]:
                _, (mu,) = draw([row], mx.array(logprobs)[None])
                row.advance(mu)
        scores = np.array(row.scores(mx.array(stream.logprobs[index]), index))
        return scores * np.float32(sampling.config.temperature)

    return score
