"""Tokens, text and ending of one sequence, alone and on every path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine import (
    Engine,
    Finish,
    GeneratedToken,
    LoopRule,
    RowProgress,
    SequenceSpec,
    StopRules,
    generate,
)
from mlxcel_engine.errors import EngineError
from mlxcel_engine.paths import PathRequest
from mlxcel_engine.prompts import encode_prompt
from tests.faults import own_paths
from tests.loaded import tiny_loaded

from .test_text import STOPS, TEXTS, cut
from .tokenizers_built import bpe, bytes_only, ids_of, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.nn as nn

QUICK = settings(max_examples=150)
MODEL = tiny_loaded().model
NONE = frozenset[int]()


def scripted(ids: Sequence[int], prompt_tokens: int) -> nn.Module:
    """A tiny model whose logits favour ``ids`` in order, then the last of them for ever; for one run."""
    model = tiny_loaded().model
    kind: Any = type(model)
    seen = [0]

    def call(self: nn.Module, inputs: mx.array, **settings: Any) -> mx.array:
        logits: mx.array = kind.__call__(self, inputs, **settings)
        seen[0] += inputs.shape[1]
        index = max(seen[0] - prompt_tokens, 0)
        return logits.at[:, -1, ids[min(index, len(ids) - 1)]].add(1000.0)

    model.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return model


def run(ids: Sequence[int], rules: StopRules) -> list[GeneratedToken]:
    engine = Engine(scripted(ids, 3))
    return list(generate(engine, SequenceSpec((65, 66, 67)), rules, bytes_only().detokenizer))


@QUICK
@given(TEXTS, STOPS, st.integers(1, 14), st.integers(0, 14))
def test_a_row_ends_at_the_first_token_that_a_rule_ends(
    text: str, stops: tuple[str, ...], limit: int, eos_at: int
) -> None:
    """Against every prefix of the ids, each decoded from its beginning."""
    (eos,) = ids_of(bpe(), "<|end|>")
    ids = [*bpe().encode(text)[:eos_at], eos]
    progress = RowProgress(StopRules(frozenset({eos}), limit, stops), 3, bpe().detokenizer)
    pieces, finish = [], None
    while finish is None:
        step = progress.advance(ids[len(progress.tokens)])
        pieces.append(step.text)
        finish = step.finish
    seen = progress.tokens
    ended = seen[-1] == eos
    expected, stop = cut(whole(bpe(), [token for token in seen if token != eos]), stops)
    assert "".join(pieces) == expected
    if ended:
        assert finish == Finish("stop", "eos")
    elif stop is not None:
        assert finish == Finish("stop", "stop-string", stop)
    else:
        assert (finish, len(seen)) == (Finish("length", "max-tokens"), limit)
    assert not any(stop in "".join(pieces) for stop in stops)


def test_case_24_the_ending_eos_is_a_counted_token_without_text() -> None:
    h, i = bytes_only().encode("hi")
    steps = run([h, i, 10, 0], StopRules(frozenset({10}), 9))
    assert [(s.token, s.text, s.finish_reason) for s in steps] == [(h, "h", None), (i, "i", None), (10, "", "stop")]


def test_case_25_the_engine_ends_at_a_stop_string_and_the_token_that_completes_it_counts() -> None:
    ids = bytes_only().encode("hi <e> there")
    steps = run(ids, StopRules(NONE, 20, ("<e>",)))
    assert [s.token for s in steps] == ids[:6]
    assert "".join(s.text for s in steps) == "hi "
    assert steps[-1].finish == Finish("stop", "stop-string", "<e>")
    assert {s.finish for s in steps[:-1]} == {None}


def test_the_engine_ends_at_a_loop_and_at_its_context() -> None:
    ids = bytes_only().encode("abababab")
    looped = run(ids, StopRules(NONE, 8, loop=LoopRule(max_period=2, repeats=3, min_tokens=1)))
    assert (len(looped), looped[-1].finish) == (6, Finish("length", "loop"))
    bounded = run(ids, StopRules(NONE, 8, context_length=7))
    assert (len(bounded), bounded[-1].finish) == (4, Finish("length", "context"))


def test_what_cannot_be_honoured_is_refused_before_any_forward() -> None:
    engine, spec = Engine(MODEL), SequenceSpec((65, 66, 67))
    with pytest.raises(EngineError, match="need a detokenizer"):
        next(generate(engine, spec, StopRules(NONE, 4, ("x",))))
    with pytest.raises(EngineError, match="3 tokens leaves no room in a context of 3"):
        next(generate(engine, spec, StopRules(NONE, 4, context_length=3)))
    assert list(generate(engine, spec, StopRules(NONE, 0, context_length=3))) == []


def heard(eos_ids: tuple[int, ...], ids: Sequence[int], limit: int) -> dict[str, list[tuple[int, str, str | None]]]:
    """What each path yields for the same scripted draws."""
    found = {}
    for path in own_paths():
        loaded = tiny_loaded(eos_ids=eos_ids, model=scripted(ids, 9))
        prompt = encode_prompt(loaded.tokenizer, "p", "two roads", chat=False)
        steps = path.run(loaded, PathRequest(prompt, limit, 2048)).steps
        found[path.name] = [(step.token, step.text, step.finish_reason) for step in steps]
    return found


@pytest.mark.parametrize("eos", [40, 41])
@pytest.mark.parametrize(
    ("text", "eos_at", "limit"),
    [
        ("héllo 😀", 4, 12),
        ("héllo 😀", 0, 12),
        ("é", 1, 9),
        ("😀", 3, 9),
        ("a b", 2, 3),
        ("a b c", 5, 2),
        (" a ", 5, 3),
    ],
)
def test_cases_23_and_24_every_path_gives_the_same_tokens_text_and_reason(
    text: str, eos_at: int, limit: int, eos: int
) -> None:
    """Either of two EOS ids: in the middle, first, inside a character, at the limit; and the limit before it."""
    ids = [*bytes_only().encode(text)[:eos_at], eos]
    runs = heard((40, 41), ids, limit)
    assert len(runs) == 3
    assert runs["engine"] == runs["cli"] == runs["mlx-server"]
    ended = "stop" if len(ids) <= limit else "length"
    assert [reason for _, _, reason in runs["engine"]] == [None] * (min(len(ids), limit) - 1) + [ended]


def test_a_path_that_knows_only_one_of_the_two_eos_ids_would_be_found() -> None:
    ids = [*bytes_only().encode("ab"), 41]
    assert heard((40,), ids, 5)["engine"] != heard((40, 41), ids, 5)["cli"]
