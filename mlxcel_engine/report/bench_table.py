"""The table of a bench record. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from mlxcel_engine.report.table import make_table, print_plainly

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from mlxcel_engine.records.bench import BenchRecord, BenchRow


def print_bench(record: BenchRecord, console: Console) -> None:
    """Print what ran, and a table for each context."""
    print_plainly(console, lambda: _print(record, console))


def _print(record: BenchRecord, console: Console) -> None:
    for line in _heading(record):
        console.print(Text(line))
    for ctx in dict.fromkeys(record.config.ctx):
        console.print()
        console.print(Text(_title(record, ctx)))
        console.print(_table(record, ctx, console))


def _heading(record: BenchRecord) -> list[str]:
    model, env, config, probe = record.config.model, record.environment, record.config, record.probe
    switch = "on" if env.deterministic else "off"
    warmup = "none" if config.warmup == "none" else f"{config.warmup} and {config.warmup_tokens} tokens"
    eos = "ignored" if config.ignore_eos else "heeded"
    return [
        f"{model.label}: {model.architecture}, {env.dtype}, {model.weights} weights, on {env.device_name}",
        f"mlx {env.mlx}, mlx-lm {env.mlx_lm}, BLAS {env.blas}, deterministic {switch}; greedy, EOS {eos}, "
        f"warm-up {warmup}",
        f"limit: reads at {probe.read_gb_s:.1f} GB/s (copies at {probe.copy_gb_s:.1f}), probed over "
        f"{_size(probe.buffer_bytes)} in {probe.dtype}; weights {_size(model.weight_bytes)}",
        "one timed pass a row (n=1): a ratio below is one draw, with no spread of its own",
    ]


def _title(record: BenchRecord, ctx: int) -> str:
    config = record.config
    rows = [row for row in record.rows if row.ctx == ctx]
    lengths = [sample.prompt_tokens for row in rows[:1] for sample in row.samples]
    prompt = f"prompt {lengths[0]}" if len(set(lengths)) == 1 else f"prompts {', '.join(map(str, lengths))}"
    chunk = f"in chunks of {rows[0].chunk}" if rows else "nothing measured"
    streams = f"{config.batch} streams, " if config.batch > 1 else ""
    label = f"{config.label}: " if config.label is not None else ""
    if not rows:
        return f"{label}ctx {ctx}: nothing measured"
    return f"{label}ctx {ctx}: {streams}{prompt} tokens {chunk}, {config.max_tokens} new tokens"


_Column = tuple[str, "Callable[[BenchRow], str]"]

# What a column shows of a row: of one stream, and of several.
_BEGIN: list[_Column] = [
    ("storage", lambda row: row.storage),
    ("TTFT ms", lambda row: _number(row.ttft_ms, 1)),
    ("prefill tok/s", lambda row: _number(row.prefill_tok_s, 1)),
    ("decode tok/s", lambda row: _number(row.decode_tok_s, 2)),
]
_WARM: list[_Column] = [("warm TTFT ms", lambda row: _number(row.ttft_warm_ms, 1))]
_ONE: list[_Column] = [("to cli", lambda row: _number(row.ratio_to_cli, 3))]
_SEVERAL: list[_Column] = [
    ("of a stream", lambda row: _span(row.stream_tok_s)),
    ("to mlx-server", lambda row: _number(row.ratio_to_mlx_server, 3)),
]
_END: list[_Column] = [
    ("% of limit", lambda row: _number(row.limit_pct, 1)),
    ("p50 ms", lambda row: _number(row.itl_ms_p50, 2)),
    ("p95 ms", lambda row: _number(row.itl_ms_p95, 2)),
    ("peak", lambda row: _size(row.peak_memory_bytes)),
    ("KV", lambda row: _size(row.kv_bytes)),
    ("paged calls", lambda row: _number(row.attention_calls, 0)),
]


def _table(record: BenchRecord, ctx: int, console: Console) -> Table:
    ratios = _ONE if record.config.batch == 1 else _SEVERAL
    columns = dict([*_BEGIN, *ratios, *_END, *(_WARM if record.config.prompt_cache else [])])
    table = make_table(console, "path", *columns, "end", right=tuple(name for name in columns if name != "storage"))
    for row in record.rows:
        if row.ctx == ctx:
            asked = record.config.max_tokens * row.batch
            early = Text(f"{row.finish_reason} after {row.tokens} of {asked}", style="bold yellow")
            end = early if row.ended_early else row.finish_reason
            table.add_row(row.path, *(show(row) for show in columns.values()), end)
    for missing in record.unmeasured:
        if missing.ctx == ctx:
            text = Text(f"failed: {missing.reason}", style="bold red") if missing.failed else f"n/a: {missing.reason}"
            table.add_row(missing.path, *("-" for _ in columns), text)
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _span(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.2f} to {max(known):.2f}" if known else "-"


def _size(count: int) -> str:
    """Bytes in decimal MB or GB, as the bandwidth is."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
