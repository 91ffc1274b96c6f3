"""The same tokens and logprobs through ``mlx-lm``'s two loops and the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator, generate_step

from mlxcel_engine.engine import Engine, SequenceSpec, StepBatch, StopRules, generate
from mlxcel_engine.engine.sampling import (
    GREEDY,
    Breakers,
    ResolvedSampling,
    RowSampler,
    SamplingConfig,
    as_mlx_lm,
    greedy,
)
from mlxcel_engine.errors import EngineError, RunError
from mlxcel_engine.paths import PathRequest
from mlxcel_engine.prompts import Prompt
from tests.engine.sampling.rows import Floats32
from tests.faults import own_paths
from tests.loaded import tiny_loaded
from tests.tiny import VOCAB, tiny_model

PROMPT = (1, 5, 9, 7, 1, 5, 9, 7, 3)
N = 24
Run = list[tuple[int, Floats32]]


def resolved(**options: Any) -> ResolvedSampling:
    return ResolvedSampling(SamplingConfig(**options), Breakers.of([(5,), (4, 6)]), frozenset({2, 3}))


SAMPLINGS = {
    "greedy": GREEDY,
    "greedy with penalties": resolved(repeat_penalty=1.3, repeat_last_n=-1, dry_multiplier=0.8),
    "seeded": ResolvedSampling(SamplingConfig.seeded(42), Breakers.of([(5,), (4, 6)])),
    "seed 0": ResolvedSampling(SamplingConfig.seeded(0)),
    "hot, no filter": resolved(temperature=2.0, seed=3, logit_bias={7: -5.0}),
    "xtc and typical": resolved(temperature=1.0, seed=3, xtc_probability=0.5, typical_p=0.9),
    "mirostat 1": resolved(temperature=1.0, seed=3, mirostat=1),
    "mirostat 2": resolved(temperature=1.0, seed=3, mirostat=2, dry_multiplier=1.0),
}


def through_generate_step(model: nn.Module, sampling: ResolvedSampling) -> Run:
    sampler, processors = as_mlx_lm(RowSampler(sampling, PROMPT))
    steps: Any = generate_step(
        mx.array(PROMPT), model, max_tokens=N, prefill_step_size=4, sampler=sampler, logits_processors=processors
    )
    return [(token, np.array(logprobs)) for token, logprobs in steps]


def through_batch_generator(model: nn.Module, sampling: ResolvedSampling) -> Run:
    sampler, processors = as_mlx_lm(RowSampler(sampling, PROMPT))
    generator: Any = BatchGenerator(model, prefill_step_size=4)
    generator.insert([list(PROMPT)], [N], samplers=[sampler], logits_processors=[processors])
    found: Run = []
    while responses := generator.next_generated():
        found += [(response.token, np.array(response.logprobs)) for response in responses]
    generator.close()
    return found


def through_engine(model: nn.Module, sampling: ResolvedSampling) -> Run:
    steps = generate(Engine(model), SequenceSpec(PROMPT, sampling, chunk=4), StopRules(frozenset(), N))
    return [(step.token, np.array(step.logprobs)) for step in steps]


def same(left: Run, right: Run) -> bool:
    pairs = zip(left, right, strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_loops_and_the_engine_give_the_same_tokens_and_logprobs_bitwise(name: str) -> None:
    model, sampling = tiny_model("llama"), SAMPLINGS[name]
    expected = through_engine(model, sampling)
    assert len(expected) == N
    assert same(through_generate_step(model, sampling), expected)
    assert same(through_batch_generator(model, sampling), expected)


@pytest.mark.parametrize("name", ["seeded", "mirostat 2"])
def test_the_paths_hand_the_sampling_to_their_loops(name: str) -> None:
    loaded = tiny_loaded(model=tiny_model("llama"))
    request = PathRequest(Prompt("p", "", PROMPT, chat=False), N, 4, SAMPLINGS[name])
    runs = [[step.token for step in path.run(loaded, request).steps] for path in own_paths()]
    assert runs == [[token for token, _ in through_engine(loaded.model, SAMPLINGS[name])]] * 3


def test_another_seed_or_a_prompt_not_penalized_gives_another_run() -> None:
    model = tiny_model("llama")
    expected = through_engine(model, SAMPLINGS["seeded"])
    assert not same(through_generate_step(model, SAMPLINGS["seed 0"]), expected)
    no_penalty = SamplingConfig.seeded(42).model_copy(update={"repeat_last_n": 1})
    assert not same(through_generate_step(model, ResolvedSampling(no_penalty)), expected)


def test_seed_42_gives_the_same_run_beside_others_on_an_engine() -> None:
    model = tiny_model("llama")
    expected = [token for token, _ in through_engine(model, SAMPLINGS["seeded"])]
    unseeded = ResolvedSampling(SamplingConfig(temperature=1.0))
    for mates in ([unseeded], [ResolvedSampling(SamplingConfig.seeded(7))], [GREEDY, unseeded]):
        engine = Engine(model)
        ids = [engine.open(SequenceSpec(PROMPT[: 3 + i], mate)) for i, mate in enumerate(mates)]
        ids.insert(1, engine.open(SequenceSpec(PROMPT, SAMPLINGS["seeded"], chunk=4)))
        for sequence in ids:
            for piece in engine.plan(sequence).pieces:
                engine.prefill(sequence, piece)
        steps = [engine.step(StepBatch(tuple(ids))) for _ in range(N)]
        assert [step.rows[1].token for step in steps] == expected


def test_greedy_runs_with_the_bare_argmax_and_no_processor() -> None:
    assert as_mlx_lm(RowSampler(GREEDY, PROMPT)) == (greedy, [])


def masked_after(steps: int) -> Callable[[Any], Any]:
    """A patch of a model: its logits are all -inf from the given forward on."""

    def patch(model: Any) -> Any:
        original, calls = type(model), [0]

        def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            logits = original.__call__(self, inputs, *args, **kwargs)
            return mx.full(logits.shape, -mx.inf) if calls[0] > steps else logits

        model.__class__ = type(original.__name__, (original,), {"__call__": call, "__module__": original.__module__})
        return model

    return patch


@pytest.mark.parametrize("name", ["greedy", "seeded", "mirostat 2"])
def test_a_step_where_all_is_masked_is_an_error_of_the_request(name: str) -> None:
    model = masked_after(3)(tiny_model("llama"))
    steps = generate(Engine(model), SequenceSpec(PROMPT, SAMPLINGS[name]), StopRules(frozenset(), N))
    with pytest.raises(RunError, match="sequence 0: every token is masked or NaN"):
        list(steps)


def test_a_row_whose_tokens_are_all_banned_fails_alone() -> None:
    model = tiny_model("llama")
    banned = resolved(logit_bias={token: float("-inf") for token in range(VOCAB)})
    engine = Engine(model)
    ids = [engine.open(SequenceSpec(PROMPT[-1:], sampling)) for sampling in (GREEDY, banned, SAMPLINGS["seeded"])]
    output = engine.step(StepBatch(tuple(ids)))
    assert [row.id for row in output.rows] == [ids[0], ids[2]]
    assert [row.id for row in output.errors] == [ids[1]]


def test_the_adapters_refuse_what_is_not_theirs() -> None:
    sampler, (processor,) = as_mlx_lm(RowSampler(SAMPLINGS["seeded"], PROMPT))
    with pytest.raises(EngineError, match="was given 2 rows; make one for each"):
        sampler(mx.zeros((2, 8)))
    with pytest.raises(EngineError, match="history has 3 tokens where the row's has 9"):
        processor(mx.array([1, 2, 3]), mx.zeros((1, VOCAB)))


def test_a_forced_loop_keeps_its_history() -> None:
    """Penalties follow the tokens that the loop was forced to, not those that were drawn."""
    model, sampling = tiny_model("llama"), SAMPLINGS["greedy with penalties"]
    forced = [11, 12, 11, 12, 11, 12]

    def logprobs(force: bool) -> list[Floats32]:
        sampler, processors = as_mlx_lm(RowSampler(sampling, PROMPT))
        queue = iter([*forced, 0, 0])
        forcing = lambda _: mx.array([next(queue)], dtype=mx.uint32)  # noqa: E731
        steps: Any = generate_step(
            mx.array(PROMPT), model, max_tokens=6, sampler=forcing if force else sampler, logits_processors=processors
        )
        return [np.array(values) for _, values in steps]

    whole = RowSampler(sampling, (*PROMPT, *forced[:5]))
    logits = model(mx.array([[*PROMPT, *forced[:5]]]))[:, -1, :]
    expected = whole.process(logits)
    np.testing.assert_allclose(
        logprobs(True)[5], np.array(expected - mx.logsumexp(expected, axis=-1))[0], rtol=1e-3, atol=1e-3
    )
    assert not np.allclose(logprobs(False)[5], logprobs(True)[5], atol=1e-2)
