"""Runs on a scripted rig: rows worked out by hand, capped contexts, failures, and the error of a silent fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_engine.bench.fake import make_fake_rig
from mlxcel_engine.bench.plan import BenchOptions, draw_prompts, resolve_warmup
from mlxcel_engine.bench.run import run_bench
from mlxcel_engine.errors import RunError, UsageError
from mlxcel_engine.records.bench import BenchRecord, BenchRow
from tests.bench.scripts import write_script

if TYPE_CHECKING:
    from pathlib import Path

    from mlxcel_engine.bench.run import BenchOutcome

PATHS = ("cli", "mlx-server", "engine", "server")


class Heard:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.counts: list[int] = []

    def phase(self, text: str, total: int | None = None) -> None:
        self.phases.append((text, total))

    def token(self, count: int) -> None:
        self.counts.append(count)


class Bench:
    """A bench on a script, and all that it said."""

    def __init__(self, tmp_path: Path, paths: tuple[str, ...] = PATHS, **changes: Any) -> None:
        self.rig = make_fake_rig(write_script(tmp_path / "rig.json", **changes), paths)
        self.heard, self.warnings, self.saved = Heard(), list[str](), list[BenchRecord]()

    def run(self, *ctx: int, n: int = 5, **options: Any) -> BenchOutcome:
        settings = BenchOptions(ctx, n, warmup=options.pop("warmup", "chunk"), **options)
        return run_bench(self.rig, settings, self.heard, lambda r, _: self.saved.append(r), self.warnings.append)

    def rows(self, *ctx: int, **options: Any) -> dict[str, BenchRow]:
        return {row.path: row for row in self.run(*ctx, **options).record.rows}


def test_a_row_by_hand(tmp_path: Path) -> None:
    rows = Bench(tmp_path).rows(100)
    row = rows["engine"]
    assert (row.ctx, row.prompt_tokens, row.batch, row.chunk, row.tokens) == (100, 100, 1, 100, 5)
    assert (row.storage, row.finish_reason, row.ended_early, row.attention_calls) == ("dense", "length", False, 0)
    assert row.ttft_ms == pytest.approx(140.0)  # 100 tokens of 1 ms and a step of 40
    assert row.decode_tok_s == pytest.approx(25.0)
    assert row.prefill_tok_s == pytest.approx(100 / 0.14)
    assert row.itl_ms_p50 == row.itl_ms_p95 == pytest.approx(40.0)
    assert row.kv_bytes == 104_000_000
    assert row.bytes_per_token == pytest.approx(100e6 + 102.5e6)  # four steps over 101 to 104 tokens
    assert row.limit_pct == pytest.approx(100 * 202.5e6 * 25.0 / 10e9)
    assert row.ratio_to_cli == pytest.approx(25.0 / 20.0)
    assert rows["cli"].ratio_to_cli == 1.0
    assert rows["cli"].ratio_to_mlx_server == pytest.approx(1.05)
    assert row.token_hash == rows["cli"].token_hash
    assert row.samples[0].arrivals_ms == pytest.approx([140.0, 180.0, 220.0, 260.0, 300.0])


def test_a_batch_shares_the_weights(tmp_path: Path) -> None:
    row = Bench(tmp_path).rows(100, batch=4, ragged=True)["engine"]
    assert [sample.prompt_tokens for sample in row.samples] == [25, 50, 75, 100]
    assert (row.prompt_tokens, row.tokens) == (250, 20)
    assert row.decode_tok_s == pytest.approx(100.0)
    assert row.stream_tok_s == pytest.approx([25.0] * 4)
    assert row.bytes_per_token == pytest.approx((100e6 + 250e6 + 4 * 2.5e6) / 4)


@pytest.mark.parametrize("option", [{"n": 1}, {"loops": {"engine": {"eos_after": 1}}, "ignore_eos": False}])
def test_one_token_gives_no_speed(tmp_path: Path, option: dict[str, Any]) -> None:
    row = Bench(tmp_path, loops=option.pop("loops", {})).rows(100, **option)["engine"]
    assert row.ttft_ms == pytest.approx(140.0)
    assert (row.decode_tok_s, row.limit_pct, row.bytes_per_token, row.ratio_to_cli) == (None, None, None, None)


def test_an_early_end_is_flagged_and_not_compared(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"loops": {"engine": {"eos_after": 3}}}
    row = Bench(tmp_path, **changes).rows(100, ignore_eos=False)["engine"]
    assert (row.ended_early, row.finish_reason, row.tokens, row.ratio_to_cli) == (True, "stop", 3, None)
    row = Bench(tmp_path, **changes).rows(100)["engine"]
    assert (row.ended_early, row.finish_reason, row.tokens) == (False, "length", 5)


def test_experts_have_no_limit(tmp_path: Path) -> None:
    row = Bench(tmp_path, step_weight_bytes=None).rows(100)["engine"]
    assert (row.bytes_per_token, row.limit_pct) == (None, None)
    assert row.decode_tok_s is not None


def test_a_context_beyond_the_model_is_capped_and_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    rows = bench.run(100, 8192, n=24).record.rows
    assert [(row.ctx, row.prompt_tokens) for row in rows if row.path == "cli"] == [(100, 100), (8192, 1000)]
    assert bench.warnings == [
        "ctx 8192: the prompt is capped at 1000 tokens; with 24 new ones they fill the context of 1024"
    ]
    assert [row.ratio_to_cli for row in rows if row.path == "cli"] == [1.0, 1.0]
    with pytest.raises(UsageError, match="1024 new tokens leave no room for a prompt in the context of 1024"):
        bench.run(100, n=1024)


def test_a_chunk_beyond_the_prompt_is_capped_and_said_unless_it_is_the_default(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.rows(100)["cli"].chunk == 100
    assert bench.warnings == []
    assert bench.rows(100, prefill_chunk=300)["cli"].chunk == 100
    assert bench.warnings == ["--prefill-chunk 300: a prompt of 100 tokens is one chunk"]


def test_a_context_asked_for_twice_is_measured_once(tmp_path: Path) -> None:
    assert len(Bench(tmp_path).run(100, 100).record.rows) == 4


@pytest.mark.parametrize(
    ("warmup", "told"),
    [("none", []), ("chunk", [("cli, ctx 500: warm-up", 64)]), ("full", [("cli, ctx 500: warm-up", 500)])],
)
def test_phases(tmp_path: Path, warmup: str, told: list[tuple[str, int]]) -> None:
    bench = Bench(tmp_path, ("cli",))
    bench.run(500, n=7, warmup=warmup, prefill_chunk=64)
    assert bench.heard.phases == [
        ("memory bandwidth", None),
        *told,
        ("cli, ctx 500: prefill", 500),
        ("cli, ctx 500: decode", 7),
    ]
    assert 500 in bench.heard.counts


def test_warm_up_resolves_by_device() -> None:
    assert [resolve_warmup(*asked) for asked in (("cpu", "auto"), ("gpu", "auto"), ("gpu", "none"))] == [
        "chunk",
        "full",
        "none",
    ]


def test_prompts_have_exact_lengths_no_eos_and_are_fresh_for_each_pass(tmp_path: Path) -> None:
    model = Bench(tmp_path).rig.model
    timed, warm_up = draw_prompts(model, (300, 7), 0, 1), draw_prompts(model, (300, 7), 0, 0)
    assert [len(prompt) for prompt in timed] == [300, 7]
    assert timed == draw_prompts(model, (300, 7), 0, 1)
    assert timed[0][:7] not in (timed[1], warm_up[0][:7])
    assert set(timed[0]) <= set(range(100)) - {2}


def test_a_path_that_breaks_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    outcome = Bench(tmp_path, loops={"mlx-server": {"breaks": "the loop fell over"}}).run(100)
    assert [row.path for row in outcome.record.rows] == ["cli", "engine", "server"]
    (missing,) = outcome.record.unmeasured
    assert (missing.path, missing.ctx, missing.failed) == ("mlx-server", 100, True)
    assert "the loop fell over" in missing.reason
    (failure,) = outcome.failures
    assert "path mlx-server failed at ctx 100" in str(failure)


def test_every_measurement_is_saved_as_it_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, loops={"mlx-server": {"breaks": "no"}})
    bench.run(100)
    assert [(len(record.rows), len(record.unmeasured)) for record in bench.saved] == [(1, 0), (1, 1), (2, 1), (3, 1)]


def test_a_path_that_cannot_is_named_unless_none_can(tmp_path: Path) -> None:
    loops = {"cli": {"unavailable": "it decodes one stream"}}
    (missing,) = Bench(tmp_path, loops=loops).run(100).record.unmeasured
    assert (missing.path, missing.reason, missing.failed) == ("cli", "it decodes one stream", False)
    with pytest.raises(UsageError, match=r"no path can do what is asked \(cli: it decodes one stream\)"):
        Bench(tmp_path, ("cli",), loops=loops).run(100)


def test_paged_kv_counts_its_calls(tmp_path: Path) -> None:
    loops = {"engine": {"storage": "paged", "calls": 30}}
    rows = Bench(tmp_path, ("cli", "engine"), loops=loops).rows(100, storage="paged")
    assert rows["engine"].attention_calls == 150
    assert rows["cli"].attention_calls is None


@pytest.mark.parametrize("seen", [{"storage": "dense", "calls": 30}, {"storage": "paged", "calls": 0}, {"calls": None}])
def test_a_silent_fallback_from_paged_is_an_error(tmp_path: Path, seen: dict[str, Any]) -> None:
    outcome = Bench(tmp_path, ("cli", "engine"), loops={"engine": seen}).run(100, storage="paged")
    (failure,) = outcome.failures
    assert isinstance(failure.__cause__, RunError)
    assert "paged KV was asked for, but not used" in str(failure.__cause__)


def test_paged_kv_of_a_family_that_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--decode-storage paged: engine: no pages here; give dense or auto"):
        Bench(tmp_path, loops={"engine": {"unavailable": "no pages here"}}).run(100, storage="paged")


def test_the_prompt_cache_gives_a_warm_time_to_first_token(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ("cli", "server"))
    rows = bench.rows(100, prompt_cache=True)
    assert rows["server"].ttft_ms == pytest.approx(141.0)
    assert rows["server"].ttft_warm_ms == pytest.approx(1.0 + 41.0)  # one token is left to prefill
    assert rows["cli"].ttft_warm_ms is None
    assert bench.rows(100)["server"].ttft_warm_ms is None


def test_a_prompt_cache_that_gives_nothing_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, loops={"server": {"forgets": True}})
    outcome = bench.run(100, prompt_cache=True)
    (failure,) = outcome.failures
    assert "no token of a prompt came from the prompt cache" in str(failure.__cause__)
    row = outcome.record.rows[-1]
    assert (row.path, row.ttft_warm_ms) == ("server", None)
    assert row.ttft_ms == pytest.approx(141.0)
    (missing,) = outcome.record.unmeasured
    assert (missing.path, missing.failed) == ("server", True)
    assert [(len(record.rows), len(record.unmeasured)) for record in bench.saved[-2:]] == [(4, 0), (4, 1)]
    with pytest.raises(UsageError, match="--prompt-cache: a prompt of one token has no prefix to keep"):
        Bench(tmp_path).run(1, prompt_cache=True)
    with pytest.raises(UsageError, match="--prompt-cache: none of these paths keeps prompts"):
        Bench(tmp_path, ("cli",)).run(100, prompt_cache=True)


def test_the_record_reads_back(tmp_path: Path) -> None:
    record = Bench(tmp_path).run(100).record
    assert BenchRecord.model_validate_json(record.model_dump_json()) == record
    assert record.kind == "bench"
