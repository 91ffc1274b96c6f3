"""The options of ``bench`` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlxcel_engine.bench.plan import WarmupChoice
from mlxcel_engine.cli import options
from mlxcel_engine.cli.options import OUTPUT_PANEL, RUN_PANEL
from mlxcel_engine.records.bench import StorageName

PATHS = ("cli", "mlx-server", "engine", "server")

Paths = Annotated[
    list[str] | None,
    typer.Option(
        "--path",
        metavar="NAME",
        help=f"A decode path: {', '.join(PATHS)}, or all (the default). May be repeated.",
        rich_help_panel=RUN_PANEL,
    ),
]
Warmup = Annotated[
    WarmupChoice,
    typer.Option(
        "--warmup",
        help="The whole prompt, its first chunk, or none; auto is full on a GPU, chunk on a CPU.",
        rich_help_panel=RUN_PANEL,
    ),
]
WarmupTokens = Annotated[
    int,
    typer.Option(
        "--warmup-tokens",
        metavar="N",
        parser=options.count,
        help="Tokens that a warm-up generates.",
        rich_help_panel=RUN_PANEL,
    ),
]
Invariant = Annotated[
    bool,
    typer.Option(
        "--invariant",
        help="Measure engine and server in the invariant mode, too, as engine-invariant and server-invariant.",
        rich_help_panel=RUN_PANEL,
    ),
]
DecodeStorage = Annotated[
    StorageName,
    typer.Option(
        "--decode-storage",
        help="KV storage of the paths that have a choice: engine and server. auto is dense.",
        rich_help_panel=RUN_PANEL,
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--batch",
        metavar="N",
        parser=options.count,
        help="Streams at once; tok/s is then of all together.",
        rich_help_panel=RUN_PANEL,
    ),
]
Ragged = Annotated[
    bool,
    typer.Option(
        "--ragged",
        help="Spread the prompts of a batch evenly from ctx/N to ctx tokens.",
        rich_help_panel=RUN_PANEL,
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos/--no-ignore-eos", help="Run past the end of text.", rich_help_panel=RUN_PANEL),
]
PromptCache = Annotated[
    bool,
    typer.Option(
        "--prompt-cache",
        help="Keep prompts where the path can (server) and time the first token of the same prompt again.",
        rich_help_panel=RUN_PANEL,
    ),
]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="TEXT", help="Stands in every row.", rich_help_panel=OUTPUT_PANEL),
]
Csv = Annotated[
    str | None,
    typer.Option(
        "--csv",
        metavar="FILE",
        help="Append the rows there: a file that exists grows, and needs no --force; a new one gets a header.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="PATH",
        help="Write the full record there; - is stdout, one line a measurement (the table then goes to stderr).",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
FakePath = Annotated[
    Path | None, typer.Option("--fake-path", hidden=True, help="Measure a scripted rig instead of a model.")
]
