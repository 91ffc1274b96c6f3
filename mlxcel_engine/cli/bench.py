"""``mlxcel-engine bench``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlxcel_engine.bench.fake import make_fake_rig
from mlxcel_engine.bench.plan import BenchOptions, resolve_warmup
from mlxcel_engine.bench.run import run_bench
from mlxcel_engine.cli import bench_options as own
from mlxcel_engine.cli import options
from mlxcel_engine.cli.progress import RunProgress
from mlxcel_engine.cli.setup import (
    error_console,
    load_model,
    prepare_runtime,
    refuse_one_file_twice,
    table_console,
    warn,
)
from mlxcel_engine.engine.plan import DEFAULT_CHUNK
from mlxcel_engine.errors import UsageError
from mlxcel_engine.records.bench import BenchRecord, BenchRow, Unmeasured
from mlxcel_engine.report.bench_csv import BenchCsv
from mlxcel_engine.report.bench_table import print_bench
from mlxcel_engine.report.output import OutputFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_engine.bench.rig import Rig
    from mlxcel_engine.device import Device
    from mlxcel_engine.engine.shapes import FixedShapes


def bench(
    model: options.Model = "default",
    path: own.Paths = None,
    ctx: options.Contexts = None,
    max_tokens: options.MaxTokens = 128,
    warmup: own.Warmup = "auto",
    warmup_tokens: own.WarmupTokens = 16,
    prefill_chunk: options.PrefillChunk = DEFAULT_CHUNK,
    invariant: own.Invariant = False,
    invariant_shape: options.InvariantShape = None,
    decode_storage: own.DecodeStorage = "auto",
    batch: own.Batch = 1,
    ragged: own.Ragged = False,
    ignore_eos: own.IgnoreEos = True,
    prompt_cache: own.PromptCache = False,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    label: own.Label = None,
    csv_path: own.Csv = None,
    json_path: own.Json = None,
    force: options.Force = False,
    fake_path: own.FakePath = None,
    debug: options.Debug = False,  # noqa: ARG001 - read by main
    version: options.Version = False,  # noqa: ARG001 - eager, handled by itself
) -> int:
    """Measure time to first token and decode speed of each path, and how far it is from the memory's limit.

    Exit codes: 0 done, 2 bad input, 3 a run failed.
    """
    paths = _choose_paths(path)
    if ragged and batch == 1:
        raise UsageError("--ragged needs streams that differ in length; give --batch 2 or more")
    if invariant and not {"engine", "server"} & set(paths):
        raise UsageError("--invariant: none of these paths has that mode; add --path engine or --path server")
    refuse_one_file_twice([json_path, csv_path])
    rows = BenchCsv(csv_path)
    with OutputFile(json_path, force=force) as output:
        with RunProgress(error_console()) as progress:
            if fake_path is not None:
                shapes = options.invariant_shapes(invariant, invariant_shape, "cpu")
                rig = make_fake_rig(fake_path, paths)
            else:
                device = prepare_runtime()
                shapes = options.invariant_shapes(invariant, invariant_shape, device)
                rig = _make_rig(
                    paths, progress, model, dtype, weights, device, shapes, trust_remote_code=trust_remote_code
                )
            settings = BenchOptions(
                ctx=tuple(ctx or options.DEFAULT_CONTEXTS),
                max_tokens=max_tokens,
                warmup=resolve_warmup(rig.environment.device, warmup),
                warmup_tokens=min(warmup_tokens, max_tokens),
                prefill_chunk=prefill_chunk,
                storage=decode_storage,
                batch=batch,
                ragged=ragged,
                ignore_eos=ignore_eos,
                prompt_cache=prompt_cache,
                label=label,
                invariant=None if shapes is None else str(shapes),
            )
            outcome = run_bench(rig, settings, progress, _saver(output, rows), warn)
        print_bench(outcome.record, table_console(to_stderr=output.is_stdout))
    if outcome.failures:
        raise outcome.failures[0]
    return 0


def _make_rig(
    paths: Sequence[str],
    progress: RunProgress,
    model: str,
    dtype: str,
    weights: str,
    device: Device,
    shapes: FixedShapes | None,
    *,
    trust_remote_code: bool,
) -> Rig:
    """Load the model and set up what measures it."""
    from mlxcel_engine.bench.real import make_rig
    from mlxcel_engine.environment import collect_environment
    from mlxcel_engine.loader.policy import resolve_policy

    policy = resolve_policy(device, dtype, weights)
    loaded = load_model(model, policy, progress.phase, trust_remote_code=trust_remote_code)
    return make_rig(collect_environment(loaded.record.dtype, device, os.environ), loaded, device, paths, shapes)


def _saver(output: OutputFile, rows: BenchCsv) -> Callable[[BenchRecord, BenchRow | Unmeasured], None]:
    """Keep what was measured as it comes: the whole record in a file, or the newest part of it as a line on stdout."""

    def save(record: BenchRecord, newest: BenchRow | Unmeasured) -> None:
        part: dict[str, list[BenchRow] | list[Unmeasured]]
        if isinstance(newest, BenchRow):
            rows.append(record, newest)
            part = {"rows": [newest], "unmeasured": []}
        else:
            part = {"rows": [], "unmeasured": [newest]}
        if output.is_stdout:
            print(record.model_copy(update=part).model_dump_json(), flush=True)
        else:
            output.write(record.model_dump_json(indent=1) + "\n")

    return save


def _choose_paths(names: Sequence[str] | None) -> list[str]:
    """Pick the paths that are named, in the order of the tables; each once."""
    for name in names or ():
        if name not in (*own.PATHS, "all"):
            raise UsageError(f"--path {name}: no such path; give one of {', '.join((*own.PATHS, 'all'))}")
    return [name for name in own.PATHS if not names or "all" in names or name in names]
