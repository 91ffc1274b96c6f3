"""Each decode loop, adapted to one protocol (:class:`~mlxcel_engine.paths.base.DecodePath`)."""

from mlxcel_engine.paths.base import (
    FOREIGN_FAILURES,
    CannotShowError,
    DecodePath,
    PathRequest,
    PathRun,
    TokenStep,
    TokenSteps,
    variants_of,
)
from mlxcel_engine.paths.evidence import mlx_lm_evidence, observed_evidence
from mlxcel_engine.paths.forward_log import ForwardLog, record_forwards
from mlxcel_engine.paths.invariant import invariant_makers
from mlxcel_engine.paths.layer_probe import LayerProbe
from mlxcel_engine.paths.registry import path_makers

__all__ = [
    "FOREIGN_FAILURES",
    "CannotShowError",
    "DecodePath",
    "ForwardLog",
    "LayerProbe",
    "PathRequest",
    "PathRun",
    "TokenStep",
    "TokenSteps",
    "invariant_makers",
    "mlx_lm_evidence",
    "observed_evidence",
    "path_makers",
    "record_forwards",
    "variants_of",
]
