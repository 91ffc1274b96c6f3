"""Scripts of a fake rig: a 100 MB model that reads 1 MB of keys and values a token, on memory of 10 GB/s."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "processor": "Fake CPU",
    "cores": 2,
    "memory_bytes": 8_000_000_000,
    "os": "Fake 1.0",
    "python": "3.11.0",
    "mlx": "0.0.1",
    "mlx_lm": "0.0.2",
    "transformers": "0.0.3",
    "tokenizers": "0.0.4",
    "project": "0.0.5",
    "project_commit": None,
    "device": "cpu",
    "device_name": "Fake CPU",
    "dtype": "float32",
    "blas": "mkl",
    "blas_version": "fake",
    "deterministic": False,
    "mlx_was_first": False,
    "variables": {},
}
MODEL = {
    "spec": "fake",
    "label": "Fake-1B",
    "architecture": "llama",
    "dtype": "float32",
    "weights": "dequantized",
    "weight_bytes": 100_000_000,
    "revision": None,
    "quantization": None,
    "vocab_size": 100,
    "context_length": 1024,
    "eos_ids": [2],
    "synthetic": False,
}
PROBE = {
    "device": "cpu",
    "dtype": "float32",
    "buffer_bytes": 268_435_456,
    "cache_bytes": 33_554_432,
    "read_gb_s": 10.0,
    "copy_gb_s": 8.0,
    "read_samples": [9.5, 10.0],
    "copy_samples": [8.0, 7.5],
}
LOOPS: dict[str, dict[str, Any]] = {
    "cli": {"storage": "mlx-lm KVCache", "prefill_ms": 2.0, "step_ms": [50.0]},
    "mlx-server": {"storage": "mlx-lm BatchKVCache", "prefill_ms": 2.0, "step_ms": [50.0, 50.0, 50.0, 60.0]},
    "engine": {"storage": "dense", "chooses_storage": True, "prefill_ms": 1.0, "step_ms": [40.0], "calls": 0},
    "server": {
        "storage": "dense",
        "chooses_storage": True,
        "caches_prompts": True,
        "prefill_ms": 1.0,
        "step_ms": [41.0, 42.0],
        "calls": 0,
    },
}


def script(**changes: Any) -> dict[str, Any]:
    """A script; ``changes`` replace whole entries, those of ``loops`` add to the loop of that name."""
    loops = {name: {**times, **changes.get("loops", {}).get(name, {})} for name, times in LOOPS.items()}
    return {
        "environment": ENVIRONMENT,
        "model": MODEL,
        "probe": PROBE,
        "step_weight_bytes": 100_000_000,
        "kv_bytes_per_token": 1_000_000,
        "peak_memory_bytes": 1_500_000_000,
        **changes,
        "loops": loops,
    }


def write_script(file: Path, **changes: Any) -> Path:
    """Write a script where ``--fake-path`` takes it from."""
    file.write_text(json.dumps(script(**changes)))
    return file
