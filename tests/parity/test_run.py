"""The parity run on tiny models: the real loops, what is recorded of them, and the edges of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.errors import RunError, UsageError
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.gate import judge
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import PathRequest
from mlxcel_engine.prompts import Prompt, encode_prompt
from tests.faults import Heard, here, own_paths, run
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.paths import DecodePath
    from mlxcel_engine.records.parity import ParityRecord


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "gemma2", "lfm2", "llama-sliding"])
def test_the_three_paths_are_identical_bitwise(name: str) -> None:
    record = run(tiny_loaded(name))
    assert [(r.left, r.right) for r in record.rows] == [("cli", "mlx-server"), ("cli", "engine")]
    assert {(r.verdict, r.logits) for r in record.rows} == {("identical", "bitwise")}
    assert judge(record.rows).exit_code == 0
    assert {len(s.ids) for s in record.streams} == {24}


def test_every_path_stops_at_the_second_of_two_eos_ids() -> None:
    free = run(tiny_loaded())
    ids = free.streams[0].ids
    eos = next(i for i in ids[3:] if i not in ids[:3])
    record = run(tiny_loaded(eos_ids=(1, eos)))
    assert {tuple(s.ids) for s in record.streams} == {tuple(ids[: ids.index(eos) + 1])}
    assert {s.finish_reason for s in record.streams} == {"stop"}
    assert len({s.text for s in record.streams}) == 1
    assert {r.verdict for r in record.rows} == {"identical"}


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
