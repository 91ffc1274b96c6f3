"""The options of ``parity`` alone."""

from __future__ import annotations

from typing import Annotated

import typer

from mlxcel_engine.cli import options
from mlxcel_engine.cli.options import RUN_PANEL, VERDICT_PANEL
from mlxcel_engine.preload import DETERMINISTIC_SWITCH

PROMPT_PANEL = "Prompts"
DIAGNOSIS_PANEL = "Diagnosis"


def batch_width(value: str | int) -> int:
    """Parse a number of rows: 2 or more, and no more than ``mlx_lm.server`` decodes at once."""
    number = options.count(value)
    if not 2 <= number <= 32:
        raise typer.BadParameter(f"{value}; give 2 to 32 rows")
    return number


def seed(value: str | int) -> int:
    """Parse a seed."""
    return options.checked(value, int, lambda number: 0 <= number < 2**64, "a whole number from 0 to 2**64-1")


PromptText = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="One user message.", rich_help_panel=PROMPT_PANEL)
]
PromptFile = Annotated[
    str | None,
    typer.Option(
        "--prompt-file",
        metavar="FILE",
        help="Take the message from a UTF-8 file; - is stdin.",
        rich_help_panel=PROMPT_PANEL,
    ),
]
Prompts = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="Several: one a line, or .jsonl with messages; built-in is a set of eight.",
        rich_help_panel=PROMPT_PANEL,
    ),
]
NoChatTemplate = Annotated[
    bool, typer.Option("--no-chat-template", help="Feed the text raw.", rich_help_panel=PROMPT_PANEL)
]
Cases = Annotated[
    str,
    typer.Option(
        "--cases",
        metavar="NAMES",
        help="greedy, seeded, or both, comma-separated; empty for --sampling alone.",
        rich_help_panel=RUN_PANEL,
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", parser=seed, help="Seed of the seeded case.", rich_help_panel=RUN_PANEL),
]
Sampling = Annotated[
    str | None,
    typer.Option(
        "--sampling",
        metavar="FILE",
        help="One more case: a JSON object of sampling options.",
        rich_help_panel=RUN_PANEL,
    ),
]
Paths = Annotated[
    str | None,
    typer.Option(
        "--paths",
        metavar="NAMES",
        help="Comma-separated: cli, mlx-server, engine, dense, paged, cache-miss, cache-hit, batch-N, mlx-batch-N, "
        "or one of another package. Default: all.",
        rich_help_panel=RUN_PANEL,
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--batch",
        metavar="N",
        parser=batch_width,
        help="Rows in the batch of the batch paths.",
        rich_help_panel=RUN_PANEL,
    ),
]
NoPromptCacheCase = Annotated[
    bool,
    typer.Option("--no-prompt-cache-case", help="Leave the prompt cache's paths out.", rich_help_panel=RUN_PANEL),
]
AllPairs = Annotated[
    bool,
    typer.Option("--all-pairs", help="Compare every path with every other one.", rich_help_panel=RUN_PANEL),
]
ExpectIdentical = Annotated[
    bool,
    typer.Option(
        "--expect-identical",
        help=f"Be a gate: exit 1 unless every pair that can run is identical. Needs {DETERMINISTIC_SWITCH}=1.",
        rich_help_panel=VERDICT_PANEL,
    ),
]
AllowNearTie = Annotated[
    bool, typer.Option("--allow-near-tie", help="Let near-ties pass the gate.", rich_help_panel=VERDICT_PANEL)
]
NoiseBound = Annotated[
    float | None,
    typer.Option(
        "--noise-bound",
        metavar="NATS",
        parser=options.nats,
        help="Largest logprob difference that counts as rounding. Default: by dtype (float32 0.002).",
        rich_help_panel=VERDICT_PANEL,
    ),
]
Locate = Annotated[
    bool,
    typer.Option(
        "--locate",
        help="Run a differing pair again to that step and name the first layer that differs.",
        rich_help_panel=DIAGNOSIS_PANEL,
    ),
]
Bisect = Annotated[
    bool,
    typer.Option(
        "--bisect",
        help="Change the settings of a differing pair one by one until it agrees.",
        rich_help_panel=DIAGNOSIS_PANEL,
    ),
]
TeacherForced = Annotated[
    bool,
    typer.Option(
        "--teacher-forced",
        help="Run every path again over the first path's tokens and compare every step.",
        rich_help_panel=DIAGNOSIS_PANEL,
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="FILE",
        help="Compare each path's streams with those in the record FILE, too.",
        rich_help_panel=VERDICT_PANEL,
    ),
]
