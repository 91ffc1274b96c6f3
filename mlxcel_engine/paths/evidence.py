"""Turns what was observed of a run into its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.prompts import hash_ids
from mlxcel_engine.records.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlxcel_engine.paths.base import PathRequest
    from mlxcel_engine.paths.forward_log import ForwardLog


def observed_evidence(
    log: ForwardLog,
    request: PathRequest,
    storage: str,
    attention_calls: int | None,
    notes: list[str],
    *,
    prompt_cache: bool = False,
) -> Evidence:
    """Evidence of a run of one request, its partition read from the forwards it made.

    Adopted tokens were not seen to go through the model: they count as those of the prompt.
    """
    return Evidence(
        storage=storage,
        attention_calls=attention_calls,
        adopted=log.adopted,
        forwarded=log.forwarded,
        partition=log.partition,
        prompt_sha256=hash_ids((*request.prompt.ids[: log.adopted], *log.prompt_ids())),
        decode_forwards=log.decode_forwards,
        widest_batch=max(log.widths, default=1),
        prompt_cache=prompt_cache,
        chunk=request.prefill_chunk,
        notes=notes,
    )


def mlx_lm_evidence(log: ForwardLog, request: PathRequest, *notes: str, prompt_cache: bool = False) -> Evidence:
    """Evidence of a run over ``mlx-lm``'s own cache objects."""
    return observed_evidence(log, request, mlx_lm_storage(log.caches), None, list(notes), prompt_cache=prompt_cache)


def mlx_lm_storage(caches: Iterable[str]) -> str:
    """What the storage is called where ``mlx-lm``'s own cache objects, of these classes, hold the KV."""
    return f"mlx-lm {'+'.join(sorted(set(caches)))}"
