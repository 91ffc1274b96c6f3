"""The tests run under the deterministic switch, which has to be set before MLX is imported."""

from __future__ import annotations

import os

os.environ["MLXCEL_SDPA_DETERMINISTIC"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no default test reaches for the network

import mlxcel_engine  # noqa: F401
