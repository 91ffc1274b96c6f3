"""``mlxcel-engine parity``."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import typer

from mlxcel_engine.cli import options
from mlxcel_engine.cli import parity_options as own
from mlxcel_engine.cli.parity_inputs import (
    DEFAULT_PROMPT,
    LONGER_PROMPT,
    check_bias,
    choose_paths,
    encode_prompts,
    names_of,
    prompt_texts,
    read_record,
    read_sampling,
)
from mlxcel_engine.cli.parity_output import gate, record_json, show
from mlxcel_engine.cli.progress import RunProgress
from mlxcel_engine.cli.setup import (
    error_console,
    load_model,
    prepare_runtime,
    refuse_beside,
    refuse_one_file_twice,
    refuse_run_options,
)
from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.errors import UsageError
from mlxcel_engine.parity.cases import CASES, DEFAULT_SEED
from mlxcel_engine.preload import DETERMINISTIC_SWITCH, PRELOAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.records.parity import ParityRecord

_CASES = ",".join(CASES)
_SHOWING = {"from_file", "against", "expect_identical", "allow_near_tie", "svg", "force", "debug"}


def parity(
    context: typer.Context,
    model: options.Model = "default",
    prompt: own.PromptText = None,
    prompt_file: own.PromptFile = None,
    prompts: own.Prompts = None,
    no_chat_template: own.NoChatTemplate = False,
    max_tokens: options.MaxTokens = 64,
    cases: own.Cases = _CASES,
    seed: own.Seed = DEFAULT_SEED,
    sampling: own.Sampling = None,
    paths: own.Paths = None,
    batch: own.Batch = 4,
    no_prompt_cache_case: own.NoPromptCacheCase = False,
    all_pairs: own.AllPairs = False,
    prefill_chunk: options.PrefillChunk = DEFAULT_CHUNK,
    invariant: options.Invariant = False,
    invariant_shape: options.InvariantShape = None,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    expect_identical: own.ExpectIdentical = False,
    allow_near_tie: own.AllowNearTie = False,
    noise_bound: own.NoiseBound = None,
    against: own.Against = None,
    locate: own.Locate = False,
    bisect: own.Bisect = False,
    teacher_forced: own.TeacherForced = False,
    from_file: options.FromFile = None,
    json_path: options.JsonPath = None,
    svg: options.Svg = None,
    force: options.Force = False,
    debug: options.Debug = False,  # noqa: ARG001 - read by main
    version: options.Version = False,  # noqa: ARG001 - eager, handled by itself
) -> int:
    """Run prompts through every decode path and say, pair by pair, whether the tokens are the same.

    Exit codes: 0 done, 1 the gate failed, 2 bad input, 3 a run failed.
    """
    if allow_near_tie and not expect_identical:
        raise UsageError("--allow-near-tie does nothing without --expect-identical; give both or none")
    refuse_one_file_twice([json_path, svg], [from_file, against, prompt_file, prompts, sampling])
    earlier = None if against is None else read_record("--against", against)
    if from_file is not None:
        refuse_run_options(context, _SHOWING)
        return _show_again(from_file, earlier, svg, force, expect_identical, allow_near_tie)
    if expect_identical and not PRELOAD.deterministic:
        raise UsageError(f"--expect-identical needs a fixed order of sums: set {DETERMINISTIC_SWITCH}=1")
    longer = LONGER_PROMPT if invariant or PRELOAD.invariant else DEFAULT_PROMPT
    texts, given = prompt_texts(prompt, prompt_file, prompts, default=longer), read_sampling(sampling)
    device = prepare_runtime()
    shapes = options.invariant_shapes(invariant, invariant_shape, device)
    if shapes is not None:
        refuse_beside(context, "prefill_chunk", "--invariant, which has a chunk of its own (--invariant-shape)")
        prefill_chunk = shapes.chunk
    from mlxcel_engine.engine.sampling import BreakerResolver
    from mlxcel_engine.environment import collect_environment
    from mlxcel_engine.loader.policy import resolve_policy
    from mlxcel_engine.parity.against import check_comparable
    from mlxcel_engine.parity.cases import case_configs, make_cases
    from mlxcel_engine.parity.run import ParityOptions, parity_config, run_parity
    from mlxcel_engine.report.output import OutputFile

    policy = resolve_policy(device, dtype, weights)
    configs = case_configs(names_of("--cases", cases), seed, given)
    chosen = choose_paths(paths, batch, shapes, prompt_cache=not no_prompt_cache_case)
    settings = ParityOptions(
        max_tokens,
        prefill_chunk,
        noise_bound,
        all_pairs=all_pairs,
        locate=locate,
        bisect=bisect,
        teacher_forced=teacher_forced,
        expect_identical=expect_identical,
        allow_near_tie=allow_near_tie,
        invariant=shapes,
    )
    with OutputFile(json_path, force=force) as output, OutputFile(svg, force=force) as picture:
        # What a loop or a model of others prints is not our data.
        with RunProgress(error_console()) as progress, redirect_stdout(sys.stderr):
            loaded = load_model(model, policy, progress.phase, trust_remote_code=trust_remote_code)
            encoded = encode_prompts(loaded, texts, max_tokens, prefill_chunk, raw=no_chat_template)
            check_bias(loaded, given)
            resolver = BreakerResolver(loaded.tokenizer, len(loaded.tokenizer))
            asked = (loaded, make_cases(configs, resolver, loaded.eos_ids), encoded, chosen, settings)
            if earlier is not None:
                check_comparable(parity_config(*asked), earlier)
            environment = collect_environment(loaded.record.dtype, device, os.environ)
            outcome = run_parity(environment, *asked, progress, lambda record: output.write(record_json(record)))
        record = _with_earlier(outcome.record, earlier, loaded.text_of)
        output.write(record_json(record))
        show(record, picture, to_stderr=output.is_stdout)
    if outcome.failures:
        raise outcome.failures[0]
    return gate(record, expect_identical=expect_identical, allow_near_tie=allow_near_tie)


def _show_again(
    file: str, earlier: ParityRecord | None, svg: str | None, force: bool, expect_identical: bool, allow_near_tie: bool
) -> int:
    from mlxcel_engine.parity.against import check_comparable
    from mlxcel_engine.report.output import OutputFile

    record = read_record("--from", file)
    if expect_identical and not record.environment.deterministic:
        raise UsageError(f"--from {file}: made without {DETERMINISTIC_SWITCH}=1, which --expect-identical needs")
    if earlier is not None:
        check_comparable(record.config, earlier)
    record = _with_earlier(record, earlier, decode=None)
    with OutputFile(svg, force=force) as picture:
        show(record, picture, to_stderr=False)
    return gate(record, expect_identical=expect_identical, allow_near_tie=allow_near_tie)


def _with_earlier(
    record: ParityRecord, earlier: ParityRecord | None, decode: Callable[[int], str] | None
) -> ParityRecord:
    """Add the rows that compare each stream with that of an earlier record."""
    from mlxcel_engine.parity.against import compare_with_record

    if earlier is None:
        return record
    return record.model_copy(update={"rows": record.rows + compare_with_record(record, earlier, decode)})
