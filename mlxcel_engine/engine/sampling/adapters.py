"""The chain as ``mlx-lm``'s loops take it: a ``sampler`` and ``logits_processors``, with the same computations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.engine.sampling.batch import draw, greedy
from mlxcel_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx

    from mlxcel_engine.engine.sampling.row import RowSampler

    Sampler = Callable[[mx.array], mx.array]
    Processor = Callable[[mx.array, mx.array], mx.array]


def as_mlx_lm(row: RowSampler) -> tuple[Sampler, list[Processor]]:
    """The two parameters of ``generate_step`` and ``BatchGenerator`` for a ``row`` that nothing else drives.

    ``mlx-lm`` gives a sampler no position, so calls are counted; the history is what ``mlx-lm`` says it is, so a
    loop whose tokens are forced keeps its penalties right. A greedy row's sampler is :func:`greedy` itself, unless
    tokens are forced.
    """
    bare = row.settings.greedy and not row.sampling.forced
    return (greedy if bare else _sampler(row)), ([_processor(row)] if row.processes else [])


def _sampler(row: RowSampler) -> Sampler:
    def sampler(logprobs: mx.array) -> mx.array:
        if logprobs.shape[0] != 1:
            raise EngineError(f"a sampler of one request was given {logprobs.shape[0]} rows; make one for each")
        tokens, (mu,) = draw([row], logprobs)
        row.advance(mu)
        return tokens

    return sampler


def _processor(row: RowSampler) -> Processor:
    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        behind = tokens.shape[0] - row.length
        if behind not in (0, 1):
            raise EngineError(f"mlx-lm's history has {tokens.shape[0]} tokens where the row's has {row.length}")
        if behind:
            row.append(tokens[-1:])
        return row.process(logits)

    return processor
