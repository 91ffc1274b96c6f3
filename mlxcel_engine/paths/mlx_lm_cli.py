"""``cli``: ``mlx_lm.generate.stream_generate``, called as ``mlx_lm.generate``'s command calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.engine.sampling import RowSampler, as_mlx_lm
from mlxcel_engine.paths.base import PathRequest, PathRun, TokenStep, TokenSteps
from mlxcel_engine.paths.evidence import mlx_lm_evidence
from mlxcel_engine.paths.forward_log import ForwardLog, record_forwards

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel


class MlxLmCli:
    """The real command-line loop, with its own EOS stop and detokenizer."""

    name = "cli"

    def unavailable(self, loaded: LoadedModel) -> str | None:  # noqa: ARG002 - it runs every model
        """None: it runs every model."""
        return None

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """See :meth:`DecodePath.run`."""
        log = ForwardLog(len(request.prompt.ids))
        return PathRun(_steps(loaded, request, log), lambda: mlx_lm_evidence(log, request))


def _steps(loaded: LoadedModel, request: PathRequest, log: ForwardLog) -> TokenSteps:
    if not request.max_tokens:
        return
    from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START, stream_generate

    sampler, processors = as_mlx_lm(RowSampler(request.sampling, request.prompt.ids))
    with record_forwards(loaded.model, log, request.probe):
        for response in stream_generate(
            loaded.model,
            loaded.tokenizer,
            list(request.prompt.ids),
            max_tokens=request.max_tokens,
            sampler=sampler,
            logits_processors=processors,
            max_kv_size=None,
            prefill_step_size=request.prefill_chunk,
            prompt_cache=None,
            kv_bits=None,
            kv_group_size=64,
            quantized_kv_start=DEFAULT_QUANTIZED_KV_START,
            draft_model=None,
            num_draft_tokens=3,
            input_embeddings=None,
        ):
            yield TokenStep(response.token, response.logprobs, response.text, response.finish_reason)
