"""``mlx-server``: ``mlx_lm.generate.BatchGenerator`` with one request, called as ``mlx_lm.server`` calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.paths.base import PathRequest, PathRun
from mlxcel_engine.paths.batch_generator import batch_steps, cannot_enter
from mlxcel_engine.paths.evidence import mlx_lm_evidence
from mlxcel_engine.paths.forward_log import ForwardLog
from mlxcel_engine.paths.neighbours import Load

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel

_SEEDED = "mlx_lm.server itself answers a seeded request through stream_generate"


class MlxLmServer:
    """The real batch generator of the server, one request in it, its prompt cache empty."""

    name = "mlx-server"

    def unavailable(self, loaded: LoadedModel) -> str | None:
        """See :func:`cannot_enter`."""
        return cannot_enter(loaded.model)

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """See :meth:`DecodePath.run`."""
        log = ForwardLog(len(request.prompt.ids))
        notes = [] if request.sampling.config.greedy else [_SEEDED]
        return PathRun(batch_steps(loaded, request, log, Load(())), lambda: mlx_lm_evidence(log, request, *notes))
