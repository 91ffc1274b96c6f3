"""``mlxcel-engine parity``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlxcel_engine.cli import options
from mlxcel_engine.cli.options import RUN_PANEL, VERDICT_PANEL
from mlxcel_engine.cli.progress import RunProgress
from mlxcel_engine.cli.setup import error_console, load_model, outliving_reader, prepare_runtime, table_console, warn
from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.errors import UsageError
from mlxcel_engine.preload import DETERMINISTIC_SWITCH, PRELOAD
from mlxcel_engine.prompts import check_context, check_text, encode_prompt

if TYPE_CHECKING:
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath
    from mlxcel_engine.records.parity import ParityRecord

DEFAULT_PROMPT = "Why is the sky blue? Answer in two sentences."


def parity(
    model: options.Model = "default",
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="One user message.", rich_help_panel=RUN_PANEL),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Take the message from a UTF-8 file; - is stdin.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            "-n",
            "--max-tokens",
            metavar="N",
            parser=options.count,
            help="Tokens to generate at most.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = 64,
    paths: Annotated[
        str | None,
        typer.Option(
            "--paths",
            metavar="NAMES",
            help="Decode paths, comma-separated: cli, mlx-server, engine. Default: all.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    prefill_chunk: options.PrefillChunk = DEFAULT_CHUNK,
    no_chat_template: Annotated[
        bool,
        typer.Option("--no-chat-template", help="Feed the text raw.", rich_help_panel=RUN_PANEL),
    ] = False,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    expect_identical: Annotated[
        bool,
        typer.Option(
            "--expect-identical",
            help=f"Be a gate: exit 1 unless every pair that can run is identical. Needs {DETERMINISTIC_SWITCH}=1.",
            rich_help_panel=VERDICT_PANEL,
        ),
    ] = False,
    allow_near_tie: Annotated[
        bool, typer.Option("--allow-near-tie", help="Let near-ties pass the gate.", rich_help_panel=VERDICT_PANEL)
    ] = False,
    noise_bound: Annotated[
        float | None,
        typer.Option(
            "--noise-bound",
            metavar="NATS",
            parser=options.nats,
            help="Largest logprob difference that counts as rounding. Default: by dtype (float32 0.002).",
            rich_help_panel=VERDICT_PANEL,
        ),
    ] = None,
    json_path: options.JsonPath = None,
    force: options.Force = False,
    debug: options.Debug = False,  # noqa: ARG001 - read by main
    version: options.Version = False,  # noqa: ARG001 - eager, handled by itself
) -> int:
    """Run one prompt through every decode path and say, pair by pair, whether the tokens are the same.

    Exit codes: 0 done, 1 the gate failed, 2 bad input, 3 a run failed.
    """
    if expect_identical and not PRELOAD.deterministic:
        raise UsageError(f"--expect-identical needs a fixed order of sums: set {DETERMINISTIC_SWITCH}=1")
    if allow_near_tie and not expect_identical:
        raise UsageError("--allow-near-tie does nothing without --expect-identical; give both or none")
    text = _prompt_text(prompt, prompt_file)
    device = prepare_runtime()
    from mlxcel_engine.environment import collect_environment
    from mlxcel_engine.loader.policy import resolve_policy
    from mlxcel_engine.parity.gate import judge
    from mlxcel_engine.parity.run import ParityOptions, run_parity
    from mlxcel_engine.report.output import OutputFile
    from mlxcel_engine.report.parity_table import print_parity

    policy = resolve_policy(device, dtype, weights)
    chosen = _choose_paths(paths)
    settings = ParityOptions(max_tokens, prefill_chunk, noise_bound, expect_identical, allow_near_tie)
    with OutputFile(json_path, force=force) as output:
        with RunProgress(error_console()) as progress:
            loaded = load_model(model, policy, progress.phase, trust_remote_code=trust_remote_code)
            encoded = encode_prompt(loaded.tokenizer, "prompt-1", text, chat=_use_template(loaded, no_chat_template))
            check_context(encoded, max_tokens, loaded.record.context_length)
            environment = collect_environment(loaded.record.dtype, device, os.environ)
            outcome = run_parity(
                environment, loaded, [encoded], chosen, settings, progress, lambda record: output.write(_json(record))
            )
        with outliving_reader():
            print_parity(outcome.record, table_console(to_stderr=output.is_stdout))
    if outcome.failures:
        raise outcome.failures[0]
    if not expect_identical:
        if not outcome.record.rows:
            warn("nothing was compared; choose at least two paths")
        return 0
    result = judge(outcome.record.rows, allow_near_tie=allow_near_tie)
    for failure in result.failures:
        print(f"gate: {failure}", file=sys.stderr)
    if not result.compared:
        print("gate: no pair was compared; choose at least two paths that run this model", file=sys.stderr)
    elif not result.failures:
        print(f"gate: passed, {result.compared} pairs", file=sys.stderr)
    return result.exit_code


def _prompt_text(prompt: str | None, prompt_file: str | None) -> str:
    """Return the message of the options, or the default one; newlines at a file's end are not part of it."""
    if prompt is not None and prompt_file is not None:
        raise UsageError("--prompt and --prompt-file exclude each other; give one of them")
    if prompt_file is None:
        text = DEFAULT_PROMPT if prompt is None else prompt
    else:
        try:
            data = sys.stdin.buffer.read() if prompt_file == "-" else Path(prompt_file).read_bytes()
            text = data.decode("utf-8").rstrip("\r\n")
        except OSError as error:
            raise UsageError(f"--prompt-file {prompt_file}: {error.strerror}; give a readable file") from None
        except UnicodeDecodeError:
            raise UsageError(f"--prompt-file {prompt_file}: not UTF-8; convert it first") from None
    return check_text(text)


def _choose_paths(names: str | None) -> list[DecodePath]:
    """Pick the paths that are named, in the order of the tables; each once."""
    from mlxcel_engine.paths import all_paths

    paths = all_paths()
    if names is None:
        return paths
    wanted = {name.strip() for name in names.split(",")}
    known = [path.name for path in paths]
    for name in sorted(wanted - set(known)):
        raise UsageError(f"--paths {name!r}: no such path; give some of {', '.join(known)}")
    return [path for path in paths if path.name in wanted]


def _use_template(loaded: LoadedModel, refused: bool) -> bool:
    """Whether to render the prompt by the chat template; says so where a checkpoint has none."""
    if not refused and not loaded.tokenizer.has_chat_template:
        warn(f"{loaded.record.label} has no chat template: the prompt is fed raw")
        return False
    return not refused


def _json(record: ParityRecord) -> str:
    return record.model_dump_json(indent=1) + "\n"
