"""``engine``: our :class:`~mlxcel_engine.engine.Engine`, one sequence, no scheduler, dense KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StopRules, generate
from mlxcel_engine.paths.base import PathRequest, PathRun, TokenStep, TokenSteps
from mlxcel_engine.paths.evidence import mlx_lm_evidence, observed_evidence
from mlxcel_engine.paths.forward_log import ForwardLog, record_forwards

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.records.evidence import Evidence


class EnginePath:
    """A fresh engine per request, so that its counters are the request's."""

    name = "engine"

    def unavailable(self, loaded: LoadedModel) -> str | None:  # noqa: ARG002 - it runs every model
        """None: it runs every model, if need be row by row."""
        return None

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """See :meth:`DecodePath.run`."""
        log = ForwardLog(len(request.prompt.ids), together=1)  # a forward may have padding beside it
        engine = Engine(loaded.model, EngineConfig(invariant=request.invariant or False))
        return PathRun(_steps(engine, loaded, request, log), lambda: _evidence(engine, log, request), _not_dense)


def _steps(engine: Engine, loaded: LoadedModel, request: PathRequest, log: ForwardLog) -> TokenSteps:
    from mlx_lm.generate import wired_limit

    spec = SequenceSpec(request.prompt.ids, request.sampling, request.prefill_chunk, request.max_tokens)
    rules = StopRules(loaded.eos_ids, request.max_tokens)
    stream = mx.default_stream(mx.default_device())
    with wired_limit(loaded.model, [stream]), record_forwards(loaded.model, log, request.probe):
        for step in generate(engine, spec, rules, loaded.tokenizer.detokenizer):
            yield TokenStep(step.token, step.logprobs, step.text, step.finish_reason)


def _evidence(engine: Engine, log: ForwardLog, request: PathRequest) -> Evidence:
    if engine.support.batched:
        return observed_evidence(log, request, engine.storage, engine.counters.attention_calls, [])
    return mlx_lm_evidence(log, request, engine.support.reason)


def _not_dense(evidence: Evidence) -> str | None:
    own = evidence.storage.startswith("mlx-lm ")
    if evidence.forwarded and not own and (evidence.storage != "dense" or not evidence.attention_calls):
        return f"not over dense KV: {evidence.storage}, attention calls={evidence.attention_calls}"
    return None
