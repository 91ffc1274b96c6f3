"""The real loops on tiny models: the same tokens, the same ends, batches, and nothing left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from mlxcel_engine.bench.loops import DecodeLoop, LoopSettings
from mlxcel_engine.bench.loops.cli import CliLoop
from mlxcel_engine.bench.loops.engine import EngineLoop
from mlxcel_engine.bench.loops.mlx_server import MlxServerLoop
from mlxcel_engine.bench.loops.server import ServerLoop
from mlxcel_engine.engine import Engine, StepBatch
from mlxcel_engine.scheduler import RequestHandle
from mlxcel_engine.scheduler.worker import Worker
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.scheduler.request import TokenEvent

LOOPS = [CliLoop, MlxServerLoop, EngineLoop, ServerLoop]
SEVERAL = [MlxServerLoop, EngineLoop, ServerLoop]
PROMPT = tuple(range(3, 43))


def settings(**changes: Any) -> LoopSettings:
    defaults: dict[str, Any] = {
        "chunk": 16,
        "storage": "auto",
        "batch": 1,
        "eos_ids": frozenset(),
        "prompt_cache": False,
        "tell_prefill": lambda _: None,
    }
    return LoopSettings(**{**defaults, **changes})


def run(loop: DecodeLoop, *prompts: tuple[int, ...], n: int = 8, **changes: Any) -> list[list[tuple[int, str | None]]]:
    """The tokens and finish reasons of each stream."""
    streams: list[list[tuple[int, str | None]]] = [[] for _ in prompts]
    with loop.open(settings(batch=len(prompts), **changes)) as session:
        for event in session.run(prompts, n):
            streams[event.stream].append((event.token, event.finish_reason))
    return streams


def bare(loaded: LoadedModel, prompt: tuple[int, ...], n: int = 8) -> list[int]:
    return [int(token) for token, _ in generate_step(mx.array(prompt), loaded.model, max_tokens=n)]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_loaded()


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_gives_the_tokens_of_generate_step(kind: Any, loaded: LoadedModel) -> None:
    (stream,) = run(kind(loaded), PROMPT)
    assert [token for token, _ in stream] == bare(loaded, PROMPT)
    assert [reason for _, reason in stream] == [None] * 7 + ["length"]


@pytest.mark.parametrize("kind", LOOPS)
def test_eos_ends_a_stream_only_where_it_is_heeded(kind: Any, loaded: LoadedModel) -> None:
    tokens = bare(loaded, PROMPT)
    eos = next(token for index, token in enumerate(tokens) if index > 1 and token not in tokens[:index])
    place = tokens.index(eos)
    with_eos = tiny_loaded(eos_ids=(eos,), model=loaded.model)
    (stream,) = run(kind(with_eos), PROMPT, eos_ids=frozenset({eos}))
    assert stream == [*((token, None) for token in tokens[:place]), (eos, "stop")]
    (stream,) = run(kind(with_eos), PROMPT)
    assert [token for token, _ in stream] == tokens
    assert with_eos.tokenizer.eos_token_ids == {eos}


@pytest.mark.parametrize("kind", SEVERAL)
def test_streams_of_a_batch_are_those_alone(kind: Any, loaded: LoadedModel) -> None:
    prompts = (PROMPT, PROMPT[5:10], PROMPT[::-1])
    streams = run(kind(loaded), *prompts)
    assert [[token for token, _ in stream] for stream in streams] == [bare(loaded, prompt) for prompt in prompts]
    assert all(stream[-1][1] == "length" for stream in streams)


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_stream_that_ends_leaves_the_others_be(kind: Any, loaded: LoadedModel) -> None:
    tokens, other = bare(loaded, PROMPT), bare(loaded, PROMPT[::-1])
    eos = next(token for token in tokens if token not in other)
    with_eos = tiny_loaded(eos_ids=(eos,), model=loaded.model)
    first, second = run(kind(with_eos), PROMPT, PROMPT[::-1], eos_ids=frozenset({eos}))
    assert first[-1] == (eos, "stop")
    assert [token for token, _ in second] == other


@pytest.mark.parametrize("kind", [EngineLoop, ServerLoop])
@pytest.mark.parametrize("prompts", [(PROMPT,), (PROMPT, PROMPT[::-1])])
def test_paged_kv_is_counted_and_dense_is_not(kind: Any, prompts: tuple[Any, ...], loaded: LoadedModel) -> None:
    for storage, name in (("auto", "dense"), ("dense", "dense"), ("paged", "paged")):
        with kind(loaded).open(settings(storage=storage, batch=len(prompts))) as session:
            for _ in session.run(prompts, 8):
                pass
            assert session.storage == name
            calls = session.attention_calls
            assert calls is not None
            assert (calls > 0) is (name == "paged")


@pytest.mark.parametrize("kind", LOOPS)
def test_a_session_takes_pass_after_pass(kind: Any, loaded: LoadedModel) -> None:
    with kind(loaded).open(settings()) as session:
        for prompt in (PROMPT[:1], PROMPT, PROMPT[::-1]):
            assert [event.token for event in session.run([prompt], 6)] == bare(loaded, prompt, 6)


@pytest.mark.parametrize("kind", [EngineLoop, ServerLoop])
@pytest.mark.parametrize("many", [1, 3])
def test_a_pass_that_is_left_early_leaves_nothing_behind(kind: Any, many: int, loaded: LoadedModel) -> None:
    with kind(loaded).open(settings(batch=many)) as session:
        events = session.run([PROMPT] * many, 200)
        next(events)
        events.close()
        assert len(list(session.run([PROMPT], 4))) == 4
    assert session._engine.open_sequences == 0


@pytest.mark.parametrize("kind", [CliLoop, MlxServerLoop, EngineLoop])
def test_prefill_is_told_in_tokens(kind: Any, loaded: LoadedModel) -> None:
    told: list[int] = []
    run(kind(loaded), PROMPT, tell_prefill=told.append)
    assert told == sorted(told)
    assert {16, 32} <= set(told)
    assert max(told) in (39, 40)


def test_the_server_keeps_prompts_only_when_asked(loaded: LoadedModel) -> None:
    for asked, adopted in ((True, range(1, 40)), (False, range(1))):
        with ServerLoop(loaded).open(settings(prompt_cache=asked)) as session:
            streams = [[event.token for event in session.run([PROMPT], 4)] for _ in range(2)]
            assert streams[0] == streams[1] == bare(loaded, PROMPT, 4)
            assert session.adopted_tokens in adopted


def test_what_was_adopted_is_known_when_a_pass_ends(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    monkeypatch.setattr(Worker, "_publish", lambda _: None)  # a snapshot of a tick may come after its tokens
    with ServerLoop(loaded).open(settings(prompt_cache=True)) as session:
        for adopted in (0, 39):
            list(session.run([PROMPT], 1))
            assert session.adopted_tokens == adopted


def test_more_streams_than_their_server_decodes_by_default_decode_together(loaded: LoadedModel) -> None:
    begun = set()
    with MlxServerLoop(loaded).open(settings(batch=34)) as session:
        for event in session.run([PROMPT[index:] for index in range(34)], 48):
            begun.add(event.stream)
            if event.finish_reason is not None:
                break
    assert len(begun) == 34


def test_the_server_stamps_tokens_as_they_come_on_the_handle(
    monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel
) -> None:
    put: list[float] = []
    original = RequestHandle.put

    def noting(handle: RequestHandle, event: TokenEvent) -> None:
        put.append(event.at)
        original(handle, event)

    monkeypatch.setattr(RequestHandle, "put", noting)
    with ServerLoop(loaded).open(settings()) as session:
        assert [event.at for event in session.run([PROMPT], 8)] == put  # however late a reader wakes


@pytest.mark.parametrize("many", [1, 3])
def test_a_first_token_waits_for_no_step_behind_it(
    many: int, monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel
) -> None:
    submitted: list[StepBatch] = []
    original = Engine.submit

    def noting(engine: Engine, batch: StepBatch) -> Any:
        submitted.append(batch)
        return original(engine, batch)

    monkeypatch.setattr(Engine, "submit", noting)
    with EngineLoop(loaded).open(settings(batch=many)) as session:
        events = session.run([PROMPT] * many, 8)
        next(events)
        assert len(submitted) == 1
        assert len(list(events)) == 8 * many - 1
    assert len(submitted) == 8


def test_one_stream_is_all_that_cli_has(loaded: LoadedModel) -> None:
    assert CliLoop(loaded).unavailable(settings(batch=2)) == "it decodes one stream"


@pytest.mark.parametrize("kind", [EngineLoop, ServerLoop])
def test_a_family_that_cannot_page_says_why(kind: Any) -> None:
    loop = kind(tiny_loaded("mamba"))
    assert loop.unavailable(settings()) is None
    assert "no paged KV for this family: " in loop.unavailable(settings(storage="paged"))
    with loop.open(settings()) as session:
        assert session.storage == "mlx-lm caches"
        assert session.attention_calls is None


def test_what_breaks_in_the_scheduler_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_loaded()

    def broken(*_: object, **__: object) -> None:
        raise ValueError("no forward today")

    monkeypatch.setattr(type(loaded.model), "__call__", broken)
    with ServerLoop(loaded).open(settings()) as session, pytest.raises(Exception, match="no forward today"):
        list(session.run([PROMPT], 4))
