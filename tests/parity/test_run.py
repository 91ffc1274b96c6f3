"""The parity run on tiny models: the real loops, every verdict, and faults that must be found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.errors import RunError, UsageError
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import PathRequest, PathRun
from mlxcel_engine.paths.engine import EnginePath
from mlxcel_engine.prompts import Prompt, encode_prompt
from tests.faults import FaultyEngine, Heard, here, own_paths, row, run
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.run import ParityOutcome
    from mlxcel_engine.paths import DecodePath, TokenSteps
    from mlxcel_engine.records.evidence import Evidence
    from mlxcel_engine.records.parity import ParityRecord


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "gemma2", "lfm2", "llama-sliding"])
def test_the_three_paths_are_identical_bitwise(name: str) -> None:
    record = run(tiny_loaded(name))
    assert [(r.left, r.right) for r in record.rows] == [("cli", "mlx-server"), ("cli", "engine")]
    assert {(r.verdict, r.logits) for r in record.rows} == {("identical", "bitwise")}
    assert judge(record.rows).exit_code == 0
    assert {len(s.ids) for s in record.streams} == {24}


def test_a_wrong_projection_diverges_and_the_row_names_index_and_tokens() -> None:
    record = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.3)])
    bad = row(record, "cli", "engine")
    cli, engine = (next(s for s in record.streams if s.path == p) for p in ("cli", "engine"))
    assert bad.verdict == "diverged"
    assert bad.index is not None
    assert cli.ids[: bad.index] == engine.ids[: bad.index]
    assert (bad.left_token, bad.right_token) == (cli.ids[bad.index], engine.ids[bad.index])
    assert bad.left_token != bad.right_token
    assert row(record, "cli", "mlx-server").verdict == "identical"
    assert judge(record.rows).exit_code == 1


def test_a_slightly_wrong_projection_with_equal_ids_is_drift() -> None:
    record = run(tiny_loaded(), [*own_paths()[:2], FaultyEngine(1.03)], n=6)
    bad = row(record, "cli", "engine")
    assert (bad.verdict, bad.index) == ("drift", None)
    assert bad.max_abs_logprob_diff is not None
    assert bad.max_abs_logprob_diff > 2e-3
    assert judge(record.rows, allow_near_tie=True).exit_code == 1


def test_equal_tokens_with_a_wide_bound_are_identical_but_not_bitwise_and_fail_the_gate() -> None:
    record = run(tiny_loaded(), [*own_paths()[:1], FaultyEngine(1.03)], n=6, noise_bound=100.0)
    assert [(r.verdict, r.logits) for r in record.rows] == [("identical", "close")]
    assert judge(record.rows).exit_code == 1


def test_every_path_stops_at_the_second_of_two_eos_ids() -> None:
    free = run(tiny_loaded())
    ids = free.streams[0].ids
    eos = next(i for i in ids[3:] if i not in ids[:3])
    record = run(tiny_loaded(eos_ids=(1, eos)))
    assert {tuple(s.ids) for s in record.streams} == {tuple(ids[: ids.index(eos) + 1])}
    assert {s.finish_reason for s in record.streams} == {"stop"}
    assert len({s.text for s in record.streams}) == 1
    assert {r.verdict for r in record.rows} == {"identical"}


def test_an_eos_that_one_path_ignores_is_found() -> None:
    class Deaf(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            return super().run(tiny_loaded(model=loaded.model), request)

    ids = run(tiny_loaded()).streams[0].ids
    eos = next(i for i in ids[3:] if i not in ids[:3])
    record = run(tiny_loaded(eos_ids=(eos,)), [*own_paths()[:1], Deaf()])
    assert [(r.verdict, r.index) for r in record.rows] == [("diverged", ids.index(eos) + 1)]


@pytest.mark.parametrize("chunk", [1, 5, 17, 18, 64])
def test_chunks_are_seen_in_the_evidence_and_change_nothing_beyond_rounding(chunk: int) -> None:
    whole = run(tiny_loaded()).streams[0]
    record = run(tiny_loaded(), chunk=chunk)
    assert {s.ids == whole.ids for s in record.streams} == {True}
    expected = [(i, min(i + chunk, 17)) for i in range(0, 17, chunk)] + [(17, 18)]
    for stream in record.streams:
        assert stream.evidence is not None
        assert stream.evidence.partition == expected
        assert (stream.evidence.forwarded, stream.evidence.adopted) == (18, 0)
    assert record.config.prefill_chunk == chunk


@pytest.mark.parametrize("text", ["x", "   ", "\n"])
def test_one_token_and_blank_prompts_give_the_same_on_every_path(text: str) -> None:
    record = run(tiny_loaded(), text=text, n=5)
    assert {r.verdict for r in record.rows} == {"identical"}


def test_evidence_is_counted_not_assumed() -> None:
    record = run(tiny_loaded(), n=4)
    by_path = {s.path: s.evidence for s in record.streams}
    engine, cli = by_path["engine"], by_path["cli"]
    assert engine is not None
    assert cli is not None
    assert (engine.storage, engine.attention_calls) == ("dense", 3 * (2 + 3))  # layers * (prompt pieces + decodes)
    assert (engine.decode_forwards, cli.decode_forwards) == (3, 4)  # ours does not look past the last token
    assert (cli.storage, cli.attention_calls) == ("mlx-lm KVCache", None)
    server = by_path["mlx-server"]
    assert server is not None
    assert server.storage == "mlx-lm BatchKVCache"
    lfm2 = next(s for s in run(tiny_loaded("lfm2"), n=2).streams if s.path == "engine").evidence
    assert lfm2 is not None
    assert lfm2.attention_calls is None
    assert lfm2.storage == "mlx-lm ArraysCache+KVCache"
    assert any("row by row" in note for note in lfm2.notes)


def test_a_path_that_cannot_run_the_model_is_not_a_failure_unless_nothing_is_compared() -> None:
    class Unable(EnginePath):
        def unavailable(self, loaded: LoadedModel) -> str | None:
            return "no such kernel"

    record = run(tiny_loaded(), [*own_paths()[:2], Unable()])
    assert [r.verdict for r in record.rows] == ["identical", "n/a"]
    assert "no such kernel" in record.rows[1].reason
    assert judge(record.rows).exit_code == 0
    assert judge(run(tiny_loaded(), [own_paths()[0], Unable()]).rows).exit_code == 3


def test_a_path_that_skips_a_part_of_the_prompt_is_invalid() -> None:
    class Skipping(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            real = super().run(loaded, request)
            return PathRun(
                real.steps, lambda: real.evidence().model_copy(update={"forwarded": len(request.prompt.ids) - 1})
            )

    record = run(tiny_loaded(), [own_paths()[0], Skipping()])
    assert [r.verdict for r in record.rows] == ["invalid"]
    assert "17 forwarded" in record.rows[0].reason
    assert judge(record.rows).exit_code == 1


def test_a_path_that_feeds_other_ids_is_found_by_what_the_model_got() -> None:
    class Swapping(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            ids = request.prompt.ids
            return super().run(loaded, replace(request, prompt=replace(request.prompt, ids=(*ids[1::-1], *ids[2:]))))

    record = run(tiny_loaded(), [own_paths()[0], Swapping()])
    assert [(r.verdict, r.reason) for r in record.rows] == [("invalid", "the prompt ids differ")]


def test_a_prompt_that_goes_through_twice_is_invalid() -> None:
    class Twice(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            run = super().run(loaded, request)

            def steps() -> TokenSteps:
                for step in run.steps:
                    if step.finish_reason is not None:
                        loaded.model(mx.array([request.prompt.ids]))
                        loaded.model(mx.array([request.prompt.ids]))
                    yield step

            return PathRun(steps(), run.evidence)

    record = run(tiny_loaded(), [own_paths()[0], Twice()], n=4)
    assert record.rows[0].verdict == "invalid"
    assert "5 forwards after the prompt for 4 tokens" in record.rows[0].reason


def test_two_runs_on_one_model_at_a_time_are_refused() -> None:
    loaded = tiny_loaded()
    request = PathRequest(Prompt("p", "", (1, 2, 3), chat=False), 4, 2048)
    first, second = (path.run(loaded, request).steps for path in own_paths()[:2])
    next(first)
    with pytest.raises(RunError, match="another run on this model is still open"):
        next(second)
    first.close()
    assert len(list(own_paths()[2].run(loaded, request).steps)) == 4


@pytest.mark.parametrize("path", own_paths(), ids=lambda path: str(path.name))
def test_zero_tokens_are_an_empty_result_and_fewer_are_refused(path: DecodePath) -> None:
    loaded = tiny_loaded()
    prompt = Prompt("p", "", (1, 2, 3), chat=False)
    run = path.run(loaded, PathRequest(prompt, 0, 2048))
    assert list(run.steps) == []
    assert (run.evidence().forwarded, run.evidence().decode_forwards) == (0, 0)
    with pytest.raises(UsageError, match="max_tokens is -1"):
        PathRequest(prompt, -1, 2048)


def test_a_thinking_tag_is_a_piece_of_its_own_and_then_close_is_enough() -> None:
    loaded = tiny_loaded()
    think = loaded.tokenizer.encode("<t>")
    loaded.tokenizer._think_start, loaded.tokenizer._think_start_tokens = "<t>", tuple(think)
    prompt = encode_prompt(loaded.tokenizer, "p", "think about it <t>\n", chat=False)
    prompt = replace(prompt, chat=True)
    outcome = run_parity(
        here(), loaded, [Case("greedy", GREEDY)], [prompt], own_paths(), ParityOptions(8, 2048), Heard(), lambda _: None
    )
    server = next(s for s in outcome.record.streams if s.path == "mlx-server").evidence
    assert server is not None
    assert server.partition == [(0, 15), (15, 18), (18, 19)]
    assert judge(outcome.record.rows).exit_code == 0


def test_nan_logits_never_pass() -> None:
    loaded = tiny_loaded()
    with pytest.raises(RunError, match="every token is masked or NaN"):
        run(loaded, [own_paths()[0], FaultyEngine(float("nan"))], n=4)
    loaded.model.layers[1].self_attn.o_proj.weight *= float("nan")
    record = run(loaded, own_paths()[:2], n=4)
    assert {r.verdict for r in record.rows} == {"drift"}
    assert judge(record.rows).exit_code == 1


def test_a_crashed_path_is_named() -> None:
    class Crashing(EnginePath):
        def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
            def steps() -> TokenSteps:
                yield next(real.steps)
                real.steps.close()
                raise ValueError("broken\npipe")

            real = super().run(loaded, request)
            return PathRun(steps(), real.evidence)

    with pytest.raises(RunError, match=r"path engine failed after 1 tokens \(ValueError: broken pipe\)"):
        run(tiny_loaded(), [Crashing()])
    loaded = tiny_loaded()
    settings = ParityOptions(4, 2048)
    prompt = Prompt("p", "p", (1, 2, 3), chat=False)
    outcome = run_parity(
        here(),
        loaded,
        [Case("greedy", GREEDY)],
        [prompt],
        [Crashing(), *own_paths()[:2]],
        settings,
        Heard(),
        lambda _: None,
    )
    rows = {(r.left, r.right): r for r in outcome.record.rows}
    assert rows["cli", "mlx-server"].verdict == "identical"
    assert rows["cli", "engine"].verdict == "invalid"
    assert "broken pipe" in rows["cli", "engine"].reason


class _Broken(EnginePath):
    """Raises at one place, from the request on that ``when`` names."""

    def __init__(self, where: str, when: str = "always") -> None:
        self.where, self.when = where, when

    def at(self, where: str, request: PathRequest | None = None) -> None:
        now = self.when == "always" or (request is not None and bool(request.sampling.forced))
        if where == self.where and now:
            raise ValueError(f"{where} broke")

    def unavailable(self, loaded: LoadedModel) -> str | None:
        self.at("unavailable")
        return super().unavailable(loaded)

    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        self.at("run", request)
        run = super().run(loaded, request)

        def evidence() -> Evidence:
            self.at("evidence", request)
            return run.evidence()

        def claim(seen: Evidence) -> str | None:
            self.at("broken_claim", request)
            return run.broken_claim(seen)

        return PathRun(run.steps, evidence, claim)


@pytest.mark.parametrize("where", ["unavailable", "run", "evidence", "broken_claim"])
def test_a_path_that_raises_anywhere_leaves_the_others_their_rows(where: str) -> None:
    cli, server, _ = own_paths()
    outcome = _outcome([cli, _Broken(where), server])
    rows = {(r.left, r.right): r for r in outcome.record.rows}
    assert rows["cli", "mlx-server"].verdict == "identical"
    assert rows["cli", "engine"].verdict == "invalid"
    assert f"(ValueError: {where} broke)" in rows["cli", "engine"].reason
    assert [type(failure.__cause__) for failure in outcome.failures] == [ValueError]


def test_a_crash_in_the_forced_sweep_is_a_failure_too() -> None:
    outcome = _outcome([own_paths()[0], _Broken("run", "forced")], teacher_forced=True)
    assert [r.verdict for r in outcome.record.rows] == ["identical"]
    assert "run broke" in outcome.record.forced[0].reason
    (failure,) = outcome.failures
    assert "path engine failed after 0 tokens (ValueError: run broke)" in str(failure)
    assert _outcome(own_paths()[::2], teacher_forced=True).failures == ()


def _outcome(paths: list[DecodePath], **options: bool) -> ParityOutcome:
    prompt = Prompt("p", "p", (1, 2, 3), chat=False)
    cases, settings = [Case("greedy", GREEDY)], ParityOptions(4, 2048, **options)
    return run_parity(here(), tiny_loaded(), cases, [prompt], paths, settings, Heard(), lambda _: None)


def test_the_record_is_saved_after_every_path_and_complete_at_last() -> None:
    loaded = tiny_loaded()
    prompts = [Prompt(name, name, tuple(range(length)), chat=False) for name, length in (("a", 3), ("b", 12))]
    saved: list[ParityRecord] = []
    heard = Heard()
    cases = [Case("greedy", GREEDY)]
    run_parity(here(), loaded, cases, prompts, own_paths(), ParityOptions(4, 2048), heard, saved.append)
    assert [len(record.rows) for record in saved] == [0, 1, 2, 2, 3, 4, 4]
    assert [len(record.streams) for record in saved] == [1, 2, 3, 4, 5, 6, 6]
    assert [record.complete for record in saved] == [False] * 6 + [True]
    assert heard.phases[0] == "greedy a cli 4"
    assert heard.tokens[:4] == [1, 2, 3, 4]


def test_top_logprobs_are_the_five_likeliest_with_the_chosen_token_first() -> None:
    for stream in run(tiny_loaded(), n=3).streams:
        for token, top in zip(stream.ids, stream.top_logprobs, strict=True):
            values = [t.logprob for t in top]
            assert (len(top), top[0].token) == (5, token)
            assert values == sorted(values, reverse=True)


def test_the_model_is_left_as_it_was() -> None:
    loaded = tiny_loaded()
    kind = type(loaded.model)
    run(loaded)
    assert type(loaded.model) is kind
    with pytest.raises(RunError, match="sequence 0: every token is masked or NaN"):
        run(loaded, [FaultyEngine(float("nan")), *own_paths()[:1]])
    assert type(loaded.model) is kind
    with pytest.raises(RunError, match="stop here"):
        run(loaded, [FaultyEngine(1.3), _Raising()])
    assert type(loaded.model) is kind


class _Raising(EnginePath):
    def run(self, loaded: LoadedModel, request: PathRequest) -> PathRun:
        run = super().run(loaded, request)

        def steps() -> TokenSteps:
            next(run.steps)
            run.steps.throw(RuntimeError("stop here"))
            yield from ()

        return PathRun(steps(), run.evidence)
