"""The scheduler's paths: what each really did, on families that page and families that cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_engine.engine import EngineConfig
from mlxcel_engine.engine.sampling import GREEDY, ResolvedSampling, SamplingConfig
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.paths import PathRequest, PathRun, path_makers, scheduler, variants_of
from mlxcel_engine.paths.scheduler import SchedulerPath
from mlxcel_engine.paths.watched_engine import WatchedEngine
from mlxcel_engine.prompts import Prompt, encode_prompt
from tests.faults import row, run, scaled_projection
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath, TokenSteps
    from mlxcel_engine.records.evidence import Evidence
    from mlxcel_engine.records.parity import ParityRecord

CASES = [Case("greedy", GREEDY), Case("seeded", ResolvedSampling(SamplingConfig.seeded(11)))]
EXACT = ("cli", "mlx-server", "engine", "dense", "paged")


def every_path(width: int = 4) -> list[DecodePath]:
    return [make() for make in path_makers(width).values()]


def evidence_of(record: ParityRecord, path: str) -> Evidence:
    found = next(stream.evidence for stream in record.streams if stream.path == path)
    assert found is not None
    return found


@pytest.mark.parametrize("chunk", [8, 2048])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "lfm2", "mamba"])
def test_both_cases_pass_the_gate_in_every_family(name: str, chunk: int) -> None:
    record = run(tiny_loaded(name), every_path(), cases=CASES, chunk=chunk, n=32)
    assert {row.verdict for row in record.rows} <= {"identical", "n/a"}
    assert judge(record.rows).exit_code == 0
    paged = {row.verdict for row in record.rows if "paged" in (row.left, row.right)}
    assert paged == ({"identical"} if name in ("llama", "qwen3") else {"n/a"})
    for found in record.rows:
        if {found.left, found.right} <= set(EXACT) and found.verdict != "n/a":
            assert found.logits == "bitwise"


def test_the_evidence_of_each_path_is_its_own() -> None:
    record = run(tiny_loaded(), every_path(), n=32)
    calls = 3 * (2 + 31)  # layers * (pieces + decode forwards)
    for path in ("dense", "paged", "cache-miss", "batch-4"):
        found = evidence_of(record, path)
        assert found.storage == ("paged" if path == "paged" else "dense")
        assert (found.attention_calls, found.decode_forwards) == (calls, 31)
        assert found.partition == [(0, 17), (17, 18)]
        assert found.prompt_cache == (path == "cache-miss")
        assert (found.adopted, found.forwarded) == (0, 18)
    hit = evidence_of(record, "cache-hit")
    assert (hit.prompt_cache, hit.adopted, hit.forwarded, hit.partition) == (True, 17, 1, [(17, 18)])
    batch = evidence_of(record, "batch-4")
    assert batch.widest_batch == 4
    assert batch.notes == ["3 of 3 neighbours joined, 3 left before it ended"]
    assert {evidence_of(record, path).widest_batch for path in EXACT} == {1}


def test_a_chat_prompt_is_cut_and_adopted_at_its_history() -> None:
    loaded = tiny_loaded()
    loaded.tokenizer.chat_template = (
        "{% for m in messages %}<u>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    prompt = encode_prompt(loaded.tokenizer, "p", "two roads diverged", chat=True)
    assert prompt.boundary == len("<u>two roads diverged")
    record = run(loaded, every_path(), chat=True, n=8)
    assert evidence_of(record, "dense").partition == [(0, 23), (23, 24)]
    assert evidence_of(record, "cache-miss").partition == [(0, 21), (21, 23), (23, 24)]
    hit = evidence_of(record, "cache-hit")
    assert (hit.adopted, hit.partition) == (21, [(21, 23), (23, 24)])
    assert judge(record.rows).exit_code == 0


def test_one_token_has_no_prefix_and_zero_tokens_forward_nothing() -> None:
    record = run(tiny_loaded(), every_path(), text="x", n=8)
    assert row(record, "cache-miss", "cache-hit").verdict == "n/a"
    assert "no prefix to adopt" in row(record, "cache-miss", "cache-hit").reason
    assert judge(record.rows).exit_code == 0
    for path in every_path():
        run_ = path.run(tiny_loaded(), PathRequest(Prompt("p", "", (1, 2), chat=False), 0, 16))
        assert list(run_.steps) == []
        assert run_.evidence().forwarded == 0


def test_a_layer_is_located_in_the_workers_thread_and_beside_neighbours() -> None:
    class Faulty(SchedulerPath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            real = super().run(loaded, request)

            def steps() -> TokenSteps:
                with scaled_projection(loaded.model, 1.2, 2):
                    yield from real.steps

            return PathRun(steps(), real.evidence, real.broken_claim)

    paths = [path_makers(4)["cli"](), Faulty("paged", storage="paged"), Faulty("batch-3", width=3)]
    record = run(tiny_loaded(), paths, n=24, locate=True)
    for found in record.rows:
        assert found.verdict in ("diverged", "drift")
        assert found.located is not None
        assert found.located.jump == "layer 2"


def claims(path: SchedulerPath, monkeypatch: pytest.MonkeyPatch, engine: Any = None) -> str:
    """The reason for which a path with a fault in it is invalid."""
    if engine is not None:
        monkeypatch.setattr(scheduler, "WatchedEngine", engine)
    record = run(tiny_loaded(), [path_makers(4)["cli"](), path], n=24)
    (one,) = record.rows
    assert one.verdict == "invalid"
    assert judge(record.rows, allow_near_tie=True).exit_code == 1
    return one.reason


def test_paged_that_falls_back_to_dense_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def fallback(model: Any, config: EngineConfig) -> WatchedEngine:
        return WatchedEngine(model, EngineConfig("dense"))

    assert "not over paged KV: dense, attention calls=75" in claims(scheduler.paged(), monkeypatch, fallback)


def test_a_cache_hit_that_adopts_nothing_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_CACHE_BYTES", 1)
    assert "was hit for 0 tokens" in claims(scheduler.cache_hit(), monkeypatch)


def test_a_cold_cache_that_is_hit_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SchedulerPath("cache-miss", cache="primed")
    real = SchedulerPath._broken_claim
    monkeypatch.setattr(SchedulerPath, "_broken_claim", lambda self, evidence: real(scheduler.cache_miss(), evidence))
    assert "it adopted 17 tokens from a prompt cache that should be cold" in claims(path, monkeypatch)


def test_a_batch_of_more_than_its_rows_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SchedulerPath._broken_claim
    monkeypatch.setattr(SchedulerPath, "_broken_claim", lambda self, evidence: real(scheduler.batch(3), evidence))
    assert "its widest batch had 5 rows, not up to 3" in claims(scheduler.batch(5), monkeypatch)


def test_variants_lead_to_dense() -> None:
    assert list(variants_of(scheduler.paged())) == ["storage dense"]
    assert list(variants_of(scheduler.batch(4))) == ["batch width 3", "batch width 2", "batch width 1"]
    assert list(variants_of(scheduler.cache_hit())) == ["prompt cache cold", "prompt cache off"]
    assert [path.name for path in variants_of(scheduler.cache_hit()).values()] == ["cache-miss", "dense"]
    assert not variants_of(scheduler.dense())
