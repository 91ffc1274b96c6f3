"""The bench run: every path at every context. No MLX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.bench.measure import measure
from mlxcel_engine.bench.plan import plan_contexts
from mlxcel_engine.bench.rows import make_row, with_ratios
from mlxcel_engine.errors import RunError, UsageError, one_line
from mlxcel_engine.records.bench import BenchConfig, BenchRecord, Unmeasured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlxcel_engine.bench.loops import DecodeLoop
    from mlxcel_engine.bench.measure import Observer
    from mlxcel_engine.bench.plan import BenchOptions, Context
    from mlxcel_engine.bench.rig import Rig
    from mlxcel_engine.records.bench import BandwidthProbe, BenchRow


@dataclass(frozen=True)
class BenchOutcome:
    """The record, and what the paths that broke raised; the record names them as unmeasured."""

    record: BenchRecord
    failures: tuple[RunError, ...]


def run_bench(
    rig: Rig,
    options: BenchOptions,
    observer: Observer,
    save: Callable[[BenchRecord, BenchRow | Unmeasured], None],
    warn: Callable[[str], None],
) -> BenchOutcome:
    """Measure each path at each context; ``save`` gets the record so far, and what is new in it.

    Raises:
        UsageError: no path can do what is asked, or one is asked for a storage or a prompt cache that it lacks.

    """
    contexts = plan_contexts(options, rig.model, warn)
    reasons = _check_paths(rig, options)
    created = rig.now()
    observer.phase("memory bandwidth")
    record = BenchRecord(
        created=created,
        environment=rig.environment,
        config=_config(rig, options),
        probe=rig.probe(),
        rows=[],
        unmeasured=[],
    )
    failures: list[RunError] = []
    for context in contexts:
        for loop in rig.loops:
            for result in _attempt(rig, loop, context, options, observer, record.probe, reasons[loop.name], failures):
                if isinstance(result, Unmeasured):
                    record = record.model_copy(update={"unmeasured": [*record.unmeasured, result]})
                else:
                    record = record.model_copy(update={"rows": with_ratios([*record.rows, result])})
                save(record, record.unmeasured[-1] if isinstance(result, Unmeasured) else record.rows[-1])
    return BenchOutcome(record, tuple(failures))


def _attempt(
    rig: Rig,
    loop: DecodeLoop,
    context: Context,
    options: BenchOptions,
    observer: Observer,
    probe: BandwidthProbe,
    reason: str | None,
    failures: list[RunError],
) -> Iterator[BenchRow | Unmeasured]:
    """Measure, and say what there is no figure of; what a loop raises is that loop's failure, and the others go on."""
    if reason is not None:
        yield Unmeasured(path=loop.name, ctx=context.asked, reason=reason, failed=False)
        return
    error: Exception | None
    try:
        measured = measure(rig, loop, context, options, observer)
    except Exception as raised:
        error = raised
    else:
        error = measured.failure
        yield make_row(loop.name, context, options, measured, rig.model, rig.footprint, probe)
    if error is not None:
        failure = RunError(f"path {loop.name} failed at ctx {context.asked} ({one_line(error)}); --debug shows where")
        failure.__cause__ = error
        failures.append(failure)
        yield Unmeasured(path=loop.name, ctx=context.asked, reason=one_line(error), failed=True)


def _check_paths(rig: Rig, options: BenchOptions) -> dict[str, str | None]:
    """Why each path cannot run, by its name."""
    if options.prompt_cache and not any(loop.caches_prompts for loop in rig.loops):
        raise UsageError("--prompt-cache: none of these paths keeps prompts; add --path server")
    if options.storage != "auto" and not any(loop.chooses_storage for loop in rig.loops):
        asked = f"--decode-storage {options.storage}"
        raise UsageError(f"{asked}: none of these paths has a choice; add --path engine or --path server")
    settings = options.loop_settings(rig.model, lambda _: None)
    reasons = {loop.name: loop.unavailable(settings) for loop in rig.loops}
    for loop in rig.loops:
        if loop.chooses_storage and reasons[loop.name] is not None and options.storage == "paged":
            raise UsageError(f"--decode-storage paged: {loop.name}: {reasons[loop.name]}; give dense or auto")
    if all(reason is not None for reason in reasons.values()):
        said = ", ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UsageError(f"no path can do what is asked ({said}); choose another --path")
    return reasons


def _config(rig: Rig, options: BenchOptions) -> BenchConfig:
    return BenchConfig(
        model=rig.model,
        paths=[loop.name for loop in rig.loops],
        ctx=list(options.ctx),
        max_tokens=options.max_tokens,
        warmup=options.warmup,
        warmup_tokens=options.warmup_tokens,
        prefill_chunk=options.prefill_chunk,
        decode_storage=options.storage,
        batch=options.batch,
        ragged=options.ragged,
        ignore_eos=options.ignore_eos,
        prompt_cache=options.prompt_cache,
        seed=options.seed,
        label=options.label,
        invariant=options.invariant,
    )
