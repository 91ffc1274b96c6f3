"""``mlx-batch-N``: the real ``BatchGenerator`` under load, as ``mlx_lm.server`` runs it with several clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_engine.paths.base import CannotShowError, DecodePath, PathRequest, PathRun, TokenSteps
from mlxcel_engine.paths.batch_generator import batch_steps, cannot_enter
from mlxcel_engine.paths.evidence import mlx_lm_evidence
from mlxcel_engine.paths.forward_log import ForwardLog
from mlxcel_engine.paths.mlx_lm_server import MlxLmServer
from mlxcel_engine.paths.neighbours import Load, make_neighbours, too_narrow

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.records.evidence import Evidence


class MlxLmBatch:
    """``mlx-server`` with neighbours of other lengths that join after the request and leave before it ends."""

    def __init__(self, width: int) -> None:
        self.name = f"mlx-batch-{width}"
        self._width = width

    @property
    def variants(self) -> dict[str, DecodePath]:
        """Narrower batches; width 1 is ``mlx-server``."""
        found: dict[str, DecodePath] = {
            f"batch width {width}": MlxLmBatch(width) for width in range(self._width - 1, 1, -1)
        }
        return {**found, "batch width 1": MlxLmServer()}

    def unavailable(self, loaded: LoadedModel) -> str | None:
        """See :func:`cannot_enter`."""
        return cannot_enter(loaded.model)

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        """See :meth:`DecodePath.run`."""
        log = ForwardLog(len(request.prompt.ids))
        neighbours = make_neighbours(
            request.prompt.ids,
            request.sampling,
            request.max_tokens,
            self._width - 1,
            loaded.record.context_length,
        )
        load = Load(neighbours)

        def steps() -> TokenSteps:
            yield from batch_steps(loaded, request, log, load)
            if request.max_tokens and not log.shared:
                raise CannotShowError("the request ended before a neighbour had joined")

        return PathRun(steps(), lambda: mlx_lm_evidence(log, request, str(load)), self._too_narrow)

    def _too_narrow(self, evidence: Evidence) -> str | None:
        return too_narrow(evidence, self._width)
