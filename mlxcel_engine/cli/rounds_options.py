"""The options of ``rounds`` alone."""

from __future__ import annotations

from typing import Annotated

import typer

from mlxcel_engine.cli import options
from mlxcel_engine.cli.options import OUTPUT_PANEL, RUN_PANEL, VERDICT_PANEL

HOST_PANEL = "Quiet host"

Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar='NAME="FLAGS"',
        help="An arm and its bench flags, ENV:NAME=VALUE and PYTHON:path among them. Repeat it; the first arm is "
        "the reference.",
        rich_help_panel=RUN_PANEL,
    ),
]
Rounds = Annotated[
    int,
    typer.Option(
        "--rounds",
        metavar="N",
        parser=options.count,
        help="Rounds; below 5 there are figures, but no claim.",
        rich_help_panel=RUN_PANEL,
    ),
]
NullEveryArm = Annotated[
    bool,
    typer.Option(
        "--null-every-arm", help="Run every arm twice a round, not only the first.", rich_help_panel=RUN_PANEL
    ),
]
Extra = Annotated[
    str,
    typer.Option("--extra", metavar='"FLAGS"', help="Bench flags for every arm.", rich_help_panel=RUN_PANEL),
]
RunTimeout = Annotated[
    float,
    typer.Option(
        "--run-timeout",
        metavar="SECONDS",
        parser=options.positive,
        help="How long one run may take.",
        rich_help_panel=RUN_PANEL,
    ),
]
WaitForHost = Annotated[
    bool,
    typer.Option("--hostgate", help="Wait for a quiet host before each run.", rich_help_panel=HOST_PANEL),
]
GateTimeout = Annotated[
    float,
    typer.Option(
        "--gate-timeout",
        metavar="SECONDS",
        parser=options.positive,
        help="How long to wait for it, then exit 3.",
        rich_help_panel=HOST_PANEL,
    ),
]
HostCpu = Annotated[
    float,
    typer.Option(
        "--host-cpu",
        metavar="CORES",
        parser=options.positive,
        help="Other programs' CPU use beyond which the host is busy, and no claim rests on the round.",
        rich_help_panel=HOST_PANEL,
    ),
]
Threshold = Annotated[
    str,
    typer.Option(
        "--threshold",
        metavar="PCT|auto",
        help="The least difference that matters; auto is the widest one between an arm and its null arm.",
        rich_help_panel=VERDICT_PANEL,
    ),
]
Gate = Annotated[
    bool,
    typer.Option(
        "--gate",
        help="Exit 1 when an arm's median decode speed is below the reference's by more than the threshold.",
        rich_help_panel=VERDICT_PANEL,
    ),
]
ExpectSameTokens = Annotated[
    bool,
    typer.Option(
        "--expect-same-tokens",
        help="Let the gate fail on an arm that generates other tokens than the reference, too.",
        rich_help_panel=VERDICT_PANEL,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="FILE.jsonl", help="Where every run is written as it ends.", rich_help_panel=OUTPUT_PANEL
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with --out: make the runs that it lacks.", rich_help_panel=OUTPUT_PANEL),
]
Csv = Annotated[
    str | None,
    typer.Option("--csv", metavar="FILE", help="Write the comparisons there.", rich_help_panel=OUTPUT_PANEL),
]
Plot = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE.svg",
        help="Plot the rounds there, over the null band.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
