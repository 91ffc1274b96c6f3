"""Runs a path to its end and keeps what the comparison and the record need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlxcel_engine.errors import MlxcelError, RunError
from mlxcel_engine.parity.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath, PathRequest
    from mlxcel_engine.records.evidence import Evidence


@dataclass(frozen=True)
class Collected:
    """A stream, the dtype name of its logprobs (None without any), and the evidence of the run."""

    stream: Stream
    dtype: str | None
    evidence: Evidence | None


def collect(path: DecodePath, loaded: LoadedModel, request: PathRequest, on_token: Callable[[int], None]) -> Collected:
    """Run ``request`` through ``path``; ``on_token`` hears the number of tokens so far.

    Raises:
        RunError: the path crashed; the message names it.

    """
    prompt_hash = request.prompt.sha256
    reason = path.unavailable(loaded)
    if reason is not None:
        return Collected(Stream(path.name, prompt_hash, unavailable=reason), None, None)
    ids: list[int] = []
    rows: list[NDArray[np.float32]] = []
    texts: list[str] = []
    finish, dtype = None, None
    run = path.run(loaded, request)
    try:
        for step in run.steps:
            ids.append(step.token)
            rows.append(np.array(step.logprobs.astype(mx.float32)))
            texts.append(step.text)
            finish, dtype = step.finish_reason, str(step.logprobs.dtype).removeprefix("mlx.core.")
            on_token(len(ids))
    except MlxcelError:
        raise
    except Exception as error:  # whatever a loop raises is that loop's failure, and the row must name it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise RunError(f"path {path.name} failed after {len(ids)} tokens ({reason}); --debug shows where") from error
    evidence = run.evidence()
    invalid = _not_as_claimed(request, evidence)
    if invalid is not None:
        return Collected(Stream(path.name, prompt_hash, invalid=invalid), dtype, evidence)
    return Collected(Stream(path.name, prompt_hash, tuple(ids), rows, "".join(texts), finish), dtype, evidence)


def _not_as_claimed(request: PathRequest, evidence: Evidence) -> str | None:
    """Say in what the run was not what its row claims: here, the whole prompt forwarded exactly once."""
    if evidence.forwarded + evidence.adopted != len(request.prompt.ids):
        seen = f"{evidence.forwarded} forwarded + {evidence.adopted} adopted"
        return f"{seen} prompt tokens, not {len(request.prompt.ids)}"
    return None
