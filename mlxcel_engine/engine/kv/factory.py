"""Which storage an engine gets, and whether it is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel_engine.engine.kv.dense import DenseKv
from mlxcel_engine.engine.kv.own import OwnCaches
from mlxcel_engine.engine.kv.paged import PagedKv
from mlxcel_engine.errors import EngineError
from mlxcel_engine.preload import PRELOAD

if TYPE_CHECKING:
    import mlx.nn as nn

    from mlxcel_engine.engine.config import EngineConfig
    from mlxcel_engine.engine.families import FamilySupport
    from mlxcel_engine.engine.kv.store import KvStore


def make_store(model: nn.Module, support: FamilySupport, config: EngineConfig, *, exact: bool, alone: bool) -> KvStore:
    """Make the storage of ``config`` for ``model``, or ``mlx-lm``'s caches where its family needs them.

    ``exact`` and ``alone`` are those of :class:`ViewForward`.

    Raises:
        EngineError: paged storage for a family that cannot; says why.

    """
    if config.storage == "paged":
        if not support.paged.ok:
            raise EngineError(f"{support.family} cannot use paged KV, {support.paged.reason}; take dense")
        return PagedKv(support.layers, config.blocks, exact, alone)
    if support.batched:
        return DenseKv(support.layers, exact, alone)
    return OwnCaches(model)


def is_exact(config: EngineConfig) -> bool:
    """What :attr:`EngineConfig.exact` comes to on this device."""
    if config.exact is not None:
        return config.exact
    return PRELOAD.deterministic or mx.default_device().type != mx.DeviceType.cpu
