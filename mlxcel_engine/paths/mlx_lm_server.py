"""``mlx-server``: ``mlx_lm.generate.BatchGenerator`` with one request, called as ``mlx_lm.server`` calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_engine.engine.sampling import RowSampler, as_mlx_lm
from mlxcel_engine.errors import RunError
from mlxcel_engine.paths.base import PathRequest, PathRun, TokenStep, TokenSteps
from mlxcel_engine.paths.evidence import mlx_lm_evidence
from mlxcel_engine.paths.forward_log import ForwardLog, record_forwards

if TYPE_CHECKING:
    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.prompts import Prompt

# The server's defaults for --decode-concurrency and --prompt-concurrency.
_DECODE_CONCURRENCY, _PROMPT_CONCURRENCY = 32, 8
_TAIL = 11  # tokens; the server looks for a thinking tag in no more than these last ones


class MlxLmServer:
    """The real batch generator of the server, one request in it, its prompt cache empty."""

    name = "mlx-server"

    def unavailable(self, loaded: LoadedModel) -> str | None:
        """See :func:`stuck_caches`."""
        return stuck_caches(loaded.model)

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """See :meth:`DecodePath.run`."""
        log = ForwardLog(len(request.prompt.ids))
        return PathRun(_steps(loaded, request, log), lambda: mlx_lm_evidence(log, request))


def stuck_caches(model: nn.Module) -> str | None:
    """Name the caches of ``model`` that cannot enter the batch generator, as the server's own check finds them."""
    from mlx_lm.models.cache import make_prompt_cache

    stuck = sorted({type(cache).__name__ for cache in make_prompt_cache(model) if not hasattr(cache, "merge")})
    return f"{', '.join(stuck)} cannot enter BatchGenerator" if stuck else None


def open_generator(model: nn.Module, chunk: int) -> Any:
    """Make a ``BatchGenerator`` as the server does, with prompts in chunks of ``chunk`` tokens; close it in the end."""
    from mlx_lm.generate import BatchGenerator

    return BatchGenerator(
        model,
        completion_batch_size=_DECODE_CONCURRENCY,
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


def _steps(loaded: LoadedModel, request: PathRequest, log: ForwardLog) -> TokenSteps:
    if not request.max_tokens:
        return
    from mlx_lm.generate import make_stop_sequences

    tokenizer = loaded.tokenizer
    detokenizer = tokenizer.detokenizer
    generator = open_generator(loaded.model, request.prefill_chunk)
    sampler, processors = as_mlx_lm(RowSampler(request.sampling, request.prompt.ids))
    try:
        with record_forwards(loaded.model, log):
            generator.insert_segments(
                segments=[server_segments(tokenizer, request.prompt)],
                max_tokens=[request.max_tokens],
                caches=[None],
                all_tokens=[[]],
                samplers=[sampler],
                logits_processors=[processors],
                stop_sequences=[make_stop_sequences(tokenizer)],
            )
            finish = None
            while finish is None:
                prompts, responses = generator.next()
                if not prompts and not responses:
                    raise RunError("mlx-server: BatchGenerator went idle before the request ended")
                for response in responses:
                    finish = response.finish_reason
                    if finish != "stop":
                        detokenizer.add_token(response.token)
                    if finish is not None:
                        detokenizer.finalize()
                    yield TokenStep(response.token, response.logprobs, detokenizer.last_segment, finish)
    finally:
        generator.close()
