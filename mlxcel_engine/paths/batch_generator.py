"""Drives ``mlx_lm.generate.BatchGenerator`` as ``mlx_lm.server`` does: one compared request, and perhaps neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.engine.sampling import RowSampler, as_mlx_lm
from mlxcel_engine.errors import RunError
from mlxcel_engine.paths.base import PathRequest, TokenStep, TokenSteps
from mlxcel_engine.paths.forward_log import ForwardLog, record_forwards

if TYPE_CHECKING:
    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mlxcel_engine.engine.sampling import ResolvedSampling
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths.neighbours import Load
    from mlxcel_engine.prompts import Prompt

# The server's defaults for --decode-concurrency and --prompt-concurrency.
_DECODE_CONCURRENCY, _PROMPT_CONCURRENCY = 32, 8
_TAIL = 11  # tokens; the server looks for a thinking tag in no more than these last ones


def cannot_enter(model: nn.Module) -> str | None:
    """Name the caches of ``model`` that cannot enter the batch generator, as the server's own check finds them."""
    from mlx_lm.models.cache import make_prompt_cache

    stuck = sorted({type(cache).__name__ for cache in make_prompt_cache(model) if not hasattr(cache, "merge")})
    return f"{', '.join(stuck)} cannot enter BatchGenerator" if stuck else None


def open_generator(model: nn.Module, chunk: int, streams: int = 1) -> Any:
    """Make a ``BatchGenerator`` as the server does, with prompts in chunks of ``chunk`` tokens; close it in the end.

    For more ``streams`` than the server decodes at once by default, it has their number as its decode concurrency.
    """
    from mlx_lm.generate import BatchGenerator

    return BatchGenerator(
        model,
        completion_batch_size=max(_DECODE_CONCURRENCY, streams),
        prefill_batch_size=_PROMPT_CONCURRENCY,
        prefill_step_size=chunk,
        stream=mx.default_stream(mx.default_device()),
    )


def server_segments(tokenizer: TokenizerWrapper, prompt: Prompt) -> list[list[int]]:
    """Split a prompt of one user message as the server does for its cache: a thinking tag at the end stands alone."""
    ids = list(prompt.ids)
    if prompt.chat and tokenizer.has_thinking:
        tail = tokenizer.rfind_think_start(ids, start=len(ids) - _TAIL)
        if tail > 0:
            return [ids[:tail], ids[tail:]]
    return [ids]


def insert(generator: Any, segments: list[list[int]], max_tokens: int, sampling: ResolvedSampling, stops: Any) -> int:
    """Insert one request as the server does; returns its uid."""
    ids = [token for segment in segments for token in segment]
    sampler, processors = as_mlx_lm(RowSampler(sampling, ids))
    (uid,) = generator.insert_segments(
        segments=[segments],
        max_tokens=[max_tokens],
        caches=[None],
        all_tokens=[[]],
        samplers=[sampler],
        logits_processors=[processors],
        stop_sequences=[stops],
    )
    return int(uid)


def batch_steps(loaded: LoadedModel, request: PathRequest, log: ForwardLog, load: Load) -> TokenSteps:
    """Run ``request`` to its end beside the neighbours of ``load``.

    It is alone until its first token, and stays row 0 of the batch: others are appended behind it. From then on each
    turn of the generator begins with one forward of the batch; other forwards of the turn are the neighbours' prompts.
    """
    if not request.max_tokens:
        return
    from mlx_lm.generate import StopSequences, make_stop_sequences

    tokenizer = loaded.tokenizer
    detokenizer = tokenizer.detokenizer
    generator = open_generator(loaded.model, request.prefill_chunk)
    try:
        with record_forwards(loaded.model, log, request.probe):
            segments, stops = server_segments(tokenizer, request.prompt), make_stop_sequences(tokenizer)
            own = insert(generator, segments, request.max_tokens, request.sampling, stops)
            tokens, finish = 0, None
            while finish is None:
                for neighbour in load.joining(tokens):
                    ids = [list(neighbour.prompt)]
                    insert(generator, ids, neighbour.tokens, neighbour.sampling, StopSequences(None))
                log.ahead = 0 if tokens else None
                prompts, responses = generator.next()
                if not prompts and not responses:
                    raise RunError("BatchGenerator went idle before the request ended")
                for response in responses:
                    if response.uid != own:
                        if response.finish_reason is not None:
                            load.leave()
                        continue
                    tokens += 1
                    finish = response.finish_reason
                    if finish != "stop":
                        detokenizer.add_token(response.token)
                    if finish is not None:
                        load.end()
                        detokenizer.finalize()
                    yield TokenStep(response.token, response.logprobs, detokenizer.last_segment, finish)
    finally:
        generator.close()
