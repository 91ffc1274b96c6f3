"""The tests run under the deterministic switch, which has to be set before MLX is imported."""

from __future__ import annotations

import os
import signal

os.environ["MLXCEL_SDPA_DETERMINISTIC"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no default test reaches for the network
# MKL's idle threads sleep: on tiny products they spin longer than they work, on cores that other tests could use.
os.environ.setdefault("KMP_BLOCKTIME", "0")

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

import mlxcel_engine  # noqa: F401
from mlxcel_engine.paths import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, whose children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("untimed", deadline=None)  # machines are shared: no example fails for being slow
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def only_our_paths() -> Iterator[None]:
    """Leave out the decode paths of packages that happen to be installed beside ours."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "entry_points", lambda group: [])
        yield
