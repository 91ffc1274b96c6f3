"""The options that commands share, one alias each."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mlxcel_engine.errors import EngineError, UsageError
from mlxcel_engine.preload import INVARIANT_SWITCH, PRELOAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.engine.shapes import FixedShapes

Number = TypeVar("Number", int, float)
MODEL_PANEL = "Model"
RUN_PANEL = "What to run"
VERDICT_PANEL = "Verdict"
OUTPUT_PANEL = "Output"
DEFAULT_CONTEXTS = (256, 8192)


def checked(
    value: str | float, kind: Callable[[str | float], Number], fits: Callable[[Number], bool], what: str
) -> Number:
    """Parse ``value`` as a number of ``kind`` that ``fits``.

    Raises:
        BadParameter: it is none; says to give ``what``.

    """
    with suppress(ValueError):
        number = kind(value)
        if fits(number):
            return number
    raise typer.BadParameter(f"{value}; give {what}")


def count(value: str | int) -> int:
    """Parse a whole number of 1 or more."""
    return checked(value, int, lambda number: number >= 1, "a whole number of 1 or more")


def positive(value: str | float) -> float:
    """Parse a finite number above 0."""
    return checked(value, float, lambda number: 0 < number < float("inf"), "a number above 0")


def nats(value: str | float) -> float:
    """Parse a finite number of 0 or more."""
    return checked(value, float, lambda number: 0 <= number < float("inf"), "a number of 0 or more")


def invariant_shapes(wanted: bool, shape: str | None, device: str) -> FixedShapes | None:
    """The shapes of ``--invariant`` and ``--invariant-shape`` on ``device``, None without the mode.

    Raises:
        UsageError: a shape that is none, that does not hold there, or without the mode.

    """
    from mlxcel_engine.engine.shapes import FixedShapes, resolve_shapes

    wanted = wanted or PRELOAD.invariant
    if shape is None:
        return resolve_shapes(wanted, device)
    if not wanted:
        raise UsageError(f"--invariant-shape {shape} does nothing without --invariant; give both or none")
    try:
        width, chunk = (int(part) for part in shape.split(","))
        return resolve_shapes(FixedShapes(width, chunk), device)
    except ValueError:
        raise UsageError(f"--invariant-shape {shape}: give two whole numbers, rows and tokens, as in 2,256") from None
    except EngineError as error:
        raise UsageError(f"--invariant-shape {shape}: {error}") from None


def _show_version(value: bool) -> None:
    if value:
        from mlxcel_engine.version import __version__

        typer.echo(f"mlxcel-engine {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT_PANEL)]
Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A directory in mlx-lm's format, a .gguf file, a hub id, synthetic:NAME, or default (SmolLM2-135M).",
        rich_help_panel=MODEL_PANEL,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="auto, float32, bfloat16 or float16; auto is float32 on a CPU, as stored on a GPU.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="FORM",
        help="auto, quantized or dequantized; auto dequantizes on a CPU.",
        rich_help_panel=MODEL_PANEL,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Let the checkpoint run code of its own.", rich_help_panel=MODEL_PANEL),
]
Contexts = Annotated[
    list[int] | None,
    typer.Option(
        "--ctx",
        metavar="N",
        parser=count,
        help=f"Prompt tokens. May be repeated; default {' and '.join(map(str, DEFAULT_CONTEXTS))}.",
        rich_help_panel=RUN_PANEL,
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "-n", "--max-tokens", metavar="N", parser=count, help="Tokens to generate at most.", rich_help_panel=RUN_PANEL
    ),
]
PrefillChunk = Annotated[
    int,
    typer.Option(
        "--prefill-chunk",
        metavar="N",
        parser=count,
        help="Prompt tokens that go through the model at once.",
        rich_help_panel=RUN_PANEL,
    ),
]
Invariant = Annotated[
    bool,
    typer.Option(
        "--invariant",
        help=f"Run our engine in shapes that nothing but the request changes; {INVARIANT_SWITCH}=1 does it, too.",
        rich_help_panel=RUN_PANEL,
    ),
]
InvariantShape = Annotated[
    str | None,
    typer.Option(
        "--invariant-shape",
        metavar="W,C",
        help="Rows of a decode forward and tokens of a prefill chunk in the invariant mode. Default: by device.",
        rich_help_panel=RUN_PANEL,
    ),
]
JsonPath = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="PATH",
        help="Write the full record there; - is stdout (the table then goes to stderr).",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
FromFile = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE", help="Run nothing: show what FILE holds again.", rich_help_panel=OUTPUT_PANEL
    ),
]
Svg = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE", help="Draw the tables there.", rich_help_panel=OUTPUT_PANEL),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace an output file that exists.", rich_help_panel=OUTPUT_PANEL)
]
