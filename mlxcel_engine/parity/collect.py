"""Runs a path to its end and keeps what the comparison and the record need of it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from traceback import format_exception
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlxcel_engine.errors import RunError, one_line
from mlxcel_engine.parity.stream import Stream
from mlxcel_engine.paths import FOREIGN_FAILURES, CannotShowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath, PathRequest, PathRun
    from mlxcel_engine.records.evidence import Evidence


@dataclass(frozen=True)
class Collected:
    """A stream, the dtype name of its logprobs (None without any), and the evidence of the run.

    ``failure`` is what a path that crashed raised; its stream is invalid.
    """

    stream: Stream
    dtype: str | None = None
    evidence: Evidence | None = None
    failure: RunError | None = None


def collect(path: DecodePath, loaded: LoadedModel, request: PathRequest, on_token: Callable[[int], None]) -> Collected:
    """Run ``request`` through ``path``; ``on_token`` hears the number of tokens so far.

    Whatever the path raises, before, in or after its loop, is that path's failure, and its row must name it.
    """
    tokens = 0

    def heard(count: int) -> None:
        nonlocal tokens
        tokens = count
        on_token(count)

    try:
        reason = path.unavailable(loaded)
        if reason is not None:
            if not reason:
                raise TypeError(f"unavailable() gave {reason!r}, which is neither None nor a reason")
            raise CannotShowError(reason)
        return _run(path, loaded, request, heard)
    except CannotShowError as error:
        return Collected(Stream(path.name, request.prompt.sha256, unavailable=str(error)))
    except FOREIGN_FAILURES as error:
        reason = f"failed after {tokens} tokens ({one_line(error)})"
        failure = RunError(f"path {path.name} {reason}; --debug shows where")
        # The error itself would keep its frames, and with them logprobs, and a loop under it that has not ended.
        failure.add_note("".join(format_exception(error)))
        return Collected(Stream(path.name, request.prompt.sha256, invalid=reason), failure=failure)


def _run(path: DecodePath, loaded: LoadedModel, request: PathRequest, on_token: Callable[[int], None]) -> Collected:
    ids: list[int] = []
    rows: list[NDArray[np.float32]] = []
    texts: list[str] = []
    finish, dtype = None, None
    run = path.run(loaded, request)
    try:
        for step in run.steps:
            if len(ids) == request.max_tokens:  # it may never end
                reason = f"it goes on after the {len(ids)} tokens that it was asked for"
                return Collected(Stream(path.name, request.prompt.sha256, invalid=reason), dtype)
            ids.append(index(step.token))
            rows.append(np.array(step.logprobs.astype(mx.float32)))
            texts.append(step.text)
            finish, dtype = step.finish_reason, str(step.logprobs.dtype).removeprefix("mlx.core.")
            on_token(len(ids))
    finally:
        run.steps.close()
    evidence = run.evidence()
    invalid = _not_as_claimed(run, request, evidence, len(ids), finish)
    if invalid is not None:
        return Collected(Stream(path.name, request.prompt.sha256, invalid=invalid), dtype, evidence)
    stream = Stream(path.name, evidence.prompt_sha256, tuple(ids), rows, "".join(texts), finish)
    return Collected(stream, dtype, evidence)


def _not_as_claimed(
    run: PathRun, request: PathRequest, evidence: Evidence, tokens: int, finish: str | None
) -> str | None:
    """Say in what the run was not what its row claims: the prompt forwarded once, a forward a token, an end."""
    if evidence.forwarded + evidence.adopted != len(request.prompt.ids) and request.max_tokens:
        seen = f"{evidence.forwarded} forwarded + {evidence.adopted} adopted"
        return f"{seen} prompt tokens, not {len(request.prompt.ids)}"
    if evidence.decode_forwards not in (max(tokens - 1, 0), tokens):  # the last prompt token's forward gives the first
        return f"{evidence.decode_forwards} forwards after the prompt for {tokens} tokens"
    if tokens and not isinstance(finish, str):
        return f"it ended after {tokens} tokens without a finish reason"
    return run.broken_claim(evidence)
