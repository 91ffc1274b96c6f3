"""The table of a bench record. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from mlxcel_engine.report.table import make_table, plain, print_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.table import Table

    from mlxcel_engine.records.bench import BenchRecord, BenchRow


def print_bench(record: BenchRecord, console: Console) -> None:
    """Print what ran, and a table for each context."""
    print_plainly(console, lambda: _print(record, console))


def _print(record: BenchRecord, console: Console) -> None:
    for line in _heading(record):
        console.print(plain(line))
    for ctx in dict.fromkeys(record.config.ctx):
        console.print()
        console.print(plain(_title(record, ctx)))
        for table in _tables(record, ctx, console):
            console.print(table)


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
    label = f"{config.label}: " if config.label else ""
    if not rows:
        return f"{label}ctx {ctx}: nothing measured"
    lengths = [sample.prompt_tokens for sample in rows[0].samples]
    prompt = f"prompt {lengths[0]}" if len(set(lengths)) == 1 else f"prompts {', '.join(map(str, lengths))}"
    others = ", ".join(f"{row.path}: {row.chunk}" for row in rows if row.chunk != rows[0].chunk)
    streams = f"{config.batch} streams, " if config.batch > 1 else ""
    given = f"{prompt} tokens in chunks of {rows[0].chunk}" + (f" ({others})" if others else "")
    return f"{label}ctx {ctx}: {streams}{given}, {config.max_tokens} new tokens"


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


_Cells = dict[str, "str | Text"]  # of a row, by the names of the columns


def _tables(record: BenchRecord, ctx: int, console: Console) -> Iterator[Table]:
    """The table; where the terminal is too narrow, in parts that each begin with the path, so that no figure is cut."""
    ratios = _ONE if record.config.batch == 1 else _SEVERAL
    columns = dict([*_BEGIN, *ratios, *_END, *(_WARM if record.config.prompt_cache else [])])
    rows, names = _rows(record, ctx, columns), [*columns, "end"]
    while names:
        count = len(names)
        while count > 1 and _width(names[:count], rows, console) > console.width:
            count -= 1
        yield _part(names[:count], rows, console)
        del names[:count]


def _rows(record: BenchRecord, ctx: int, columns: dict[str, Callable[[BenchRow], str]]) -> list[_Cells]:
    rows: list[_Cells] = []
    for row in record.rows:
        if row.ctx == ctx:
            asked = record.config.max_tokens * row.batch
            early = Text(f"{row.finish_reason} after {row.tokens} of {asked}", style="bold yellow")
            shown = {name: show(row) for name, show in columns.items()}
            rows.append({"path": row.path, **shown, "end": early if row.ended_early else row.finish_reason or "-"})
    for missing in record.unmeasured:
        if missing.ctx == ctx:
            text = plain(f"failed: {missing.reason}", "bold red") if missing.failed else plain(f"n/a: {missing.reason}")
            rows.append({"path": missing.path, **dict.fromkeys(columns, "-"), "end": text})
    return rows


def _part(names: list[str], rows: list[_Cells], console: Console) -> Table:
    """A table of the columns ``names``; only the end of a row may take several lines."""
    whole = ("path", *(name for name in names if name != "end"))
    right = tuple(name for name in whole if name not in ("path", "storage"))
    table = make_table(console, "path", *names, right=right, whole=whole)
    for row in rows:
        table.add_row(*(row[name] for name in ("path", *names)))
    return table


def _width(names: list[str], rows: list[_Cells], console: Console) -> int:
    """Columns that the part takes at least: the end of a row counts with its longest word."""
    narrow = [{**row, "end": max(str(row["end"]).split(), key=len)} for row in rows]
    return console.measure(_part(names, narrow, console), options=console.options.update(max_width=100_000)).maximum


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _span(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.2f} to {max(known):.2f}" if known else "-"


def _size(count: int) -> str:
    """Bytes in decimal MB or GB, as the bandwidth is."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
