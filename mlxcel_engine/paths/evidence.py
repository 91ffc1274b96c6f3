"""Turns what was observed of a run into its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.records.evidence import Evidence

if TYPE_CHECKING:
    from mlxcel_engine.paths.base import PathRequest
    from mlxcel_engine.paths.forward_log import ForwardLog


def observed_evidence(
    log: ForwardLog, request: PathRequest, storage: str, attention_calls: int | None, notes: list[str]
) -> Evidence:
    """Evidence of a run of one request without a prompt cache, its partition read from the forwards it made."""
    partition = log.partition(len(request.prompt.ids))
    return Evidence(
        storage=storage,
        attention_calls=attention_calls,
        adopted=0,
        forwarded=sum(stop - start for start, stop in partition),
        partition=partition,
        decode_forwards=len(log.lengths) - len(partition),
        prompt_cache=False,
        chunk=request.prefill_chunk,
        notes=notes,
    )


def mlx_lm_evidence(log: ForwardLog, request: PathRequest) -> Evidence:
    """Evidence of one of ``mlx-lm``'s own loops."""
    return observed_evidence(log, request, "mlx-lm caches", None, [])
