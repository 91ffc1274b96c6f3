"""``mlxcel-engine rounds``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from mlxcel_engine.cli import options
from mlxcel_engine.cli import rounds_options as own
from mlxcel_engine.cli.rounds_progress import RoundsProgress
from mlxcel_engine.cli.setup import error_console, refuse_one_file_twice, refuse_run_options, say, table_console, warn
from mlxcel_engine.cli.signals import Stopped
from mlxcel_engine.errors import RunError, UsageError
from mlxcel_engine.records.rounds import RoundsConfig, RoundsHeader
from mlxcel_engine.report.output import OutputFile
from mlxcel_engine.report.rounds_csv import rounds_csv
from mlxcel_engine.report.rounds_plot import rounds_plot
from mlxcel_engine.report.rounds_table import print_rounds, rounds_svg
from mlxcel_engine.rounds.arms import parse_arms, parse_extra
from mlxcel_engine.rounds.gate import GATE_FAILED, judge
from mlxcel_engine.rounds.host import ThisHost
from mlxcel_engine.rounds.hostgate import HostGate, Limits
from mlxcel_engine.rounds.journal import Journal, read_journal
from mlxcel_engine.rounds.notes import describe_failure
from mlxcel_engine.rounds.run import Runner
from mlxcel_engine.rounds.schedule import MOST_ROUNDS, ORDER, slots_of
from mlxcel_engine.rounds.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_engine.records.rounds import RoundsRecord, Run

_SHOWING = {
    "source",
    "threshold",
    "gate",
    "expect_same_tokens",
    "csv_path",
    "json_path",
    "svg_path",
    "plot_path",
    "force",
    "debug",
}


def rounds(
    context: typer.Context,
    arm: own.Arms = None,
    model: options.Model = "default",
    ctx: options.Contexts = None,
    max_tokens: options.MaxTokens = 128,
    number: own.Rounds = 5,
    null_every_arm: own.NullEveryArm = False,
    extra: own.Extra = "",
    run_timeout: own.RunTimeout = 3600,
    hostgate: own.WaitForHost = False,
    gate_timeout: own.GateTimeout = 600,
    host_cpu: own.HostCpu = 0.5,
    threshold: own.Threshold = "auto",
    gate: own.Gate = False,
    expect_same_tokens: own.ExpectSameTokens = False,
    out: own.Out = None,
    resume: own.Resume = False,
    source: options.FromFile = None,
    csv_path: own.Csv = None,
    json_path: options.JsonPath = None,
    svg_path: options.Svg = None,
    plot_path: own.Plot = None,
    force: options.Force = False,
    debug: options.Debug = False,  # noqa: ARG001 - read by main
    version: options.Version = False,  # noqa: ARG001 - eager, handled by itself
) -> int:
    """Is B faster than A? Interleaved rounds of fresh bench processes, null arms, and a verdict that knows the noise.

    Exit codes: 0 done, 1 the gate failed, 2 bad input, 3 a run failed, or not all was measured.
    """
    limit = _threshold(threshold)
    if expect_same_tokens and not gate:
        raise UsageError("--expect-same-tokens is part of the gate; give --gate, too")
    if source is not None:
        refuse_run_options(context, _SHOWING)
        load = _reader(source)
    else:
        if out is None:
            raise UsageError("--out FILE.jsonl is missing: every run is written there as it ends")
        if out == "-":
            raise UsageError("--out -: runs are kept in a file, so that --resume can go on; --json - is for stdout")
        if number > MOST_ROUNDS:
            raise UsageError(f"--rounds {number}: give {MOST_ROUNDS} at most")
        config = RoundsConfig(
            arms=parse_arms(arm or ()),
            model=model,
            ctx=list(dict.fromkeys(ctx or options.DEFAULT_CONTEXTS)),
            max_tokens=max_tokens,
            extra=parse_extra(extra),
            rounds=number,
            null_every_arm=null_every_arm,
        )
        limits = Limits(others_cpu=host_cpu, load=2.0 * (os.cpu_count() or 1))
        runner = Runner(HostGate(ThisHost(), limits, gate_timeout if hostgate else 0.0), os.environ, run_timeout)
        load = _measurer(config, runner, out, resume=resume, force=force)
    refuse_one_file_twice([out, json_path, csv_path, svg_path, plot_path], [source])
    writers: list[tuple[str | None, Callable[[RoundsRecord], str]]] = [
        (json_path, lambda record: record.model_dump_json(indent=1) + "\n"),
        (csv_path, rounds_csv),
        (svg_path, rounds_svg),
        (plot_path, rounds_plot),
    ]
    with ExitStack() as stack:
        outputs = [(stack.enter_context(OutputFile(path, force=force)), write) for path, write in writers]
        header, runs = load()
        record = summarise(header, runs, limit)
        for output, write in outputs:
            output.write(write(record))
        print_rounds(record, table_console(to_stderr=any(output.is_stdout for output, _ in outputs)))
    code, problem = _apply_gate(record, expect_same_tokens) if gate else 0, _bad_runs(record.runs)
    if problem is None:
        return code
    if code != GATE_FAILED:
        raise RunError(problem)
    warn(problem)  # what is known to be wrong comes first
    return code


def _threshold(text: str) -> float | None:
    """Parse ``--threshold``; None is automatic."""
    if text == "auto":
        return None
    try:
        pct = float(text)
    except ValueError:
        pct = -1.0
    if not 0 <= pct < float("inf"):
        raise UsageError(f"--threshold {text}: give a percentage of 0 or more, or auto")
    return pct


def _reader(source: str) -> Callable[[], tuple[RoundsHeader, Sequence[Run]]]:
    def read() -> tuple[RoundsHeader, Sequence[Run]]:
        contents = read_journal(source)
        if contents.torn:
            warn(f"{source}: the last line has no end and does not count; --resume makes that run again")
        return contents.header, contents.runs

    return read


def _measurer(
    config: RoundsConfig, runner: Runner, out: str, *, resume: bool, force: bool
) -> Callable[[], tuple[RoundsHeader, Sequence[Run]]]:
    def measure() -> tuple[RoundsHeader, Sequence[Run]]:
        begun = RoundsHeader(created=datetime.now(UTC), order=ORDER, config=config)
        with (
            Journal(out, begun, resume=resume, force=force) as journal,
            RoundsProgress(error_console(), slots_of(config), journal.runs) as progress,
        ):
            if journal.torn:
                warn(f"{out}: the last line had no end; that run is made again")
            try:
                return journal.header, runner.run(config, journal, progress)
            except Stopped as stopped:
                kept = f"{out} keeps the runs that ended, and the same command with --resume goes on"
                raise Stopped(stopped.number, kept) from None

    return measure


def _apply_gate(record: RoundsRecord, expect_same_tokens: bool) -> int:
    result = judge(record, expect_same_tokens=expect_same_tokens)
    for line in (*result.failures, *result.unmeasured):
        say(f"gate: {line}")
    if result.exit_code == 0:
        say(f"gate: passed, {result.compared} comparisons")
    return result.exit_code


def _bad_runs(runs: Sequence[Run]) -> str | None:
    failed = [run for run in runs if run.status != "ok"]
    if failed:
        return f"{len(failed)} of {len(runs)} runs failed; the first: {describe_failure(failed[0])}"
    return None if runs else "nothing was measured; go on with --resume"
