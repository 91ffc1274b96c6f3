"""A tiny config of every text architecture of ``mlx-lm``, and why the other modules have none."""

from __future__ import annotations

from tests.conformance.configs.common import COMMON, VOCAB, Config
from tests.conformance.configs.dense import DENSE
from tests.conformance.configs.experts import EXPERT
from tests.conformance.configs.recurrent import RECURRENT
from tests.conformance.configs.sliding import SLIDING
from tests.conformance.configs.unrunnable import PARTS, UNRUNNABLE, Unrunnable
from tests.conformance.configs.wrappers import WRAPPERS

__all__ = ["CONFIGS", "PARTS", "UNRUNNABLE", "VOCAB", "Config", "Unrunnable", "tiny_config"]

CONFIGS: dict[str, Config] = {**DENSE, **SLIDING, **EXPERT, **RECURRENT, **WRAPPERS}


def tiny_config(name: str) -> Config:
    """The config of a tiny model of the family ``name``; a text model inside gets the common keys too."""
    own = CONFIGS[name] if name in CONFIGS else UNRUNNABLE[name].config
    config = {"model_type": name, **COMMON, **own}
    if "text_config" in config:
        config["text_config"] = {**COMMON, **config["text_config"]}
    return config
