"""The ``mlxcel-engine`` command: parses, calls, renders errors as one line, and is the only part that exits."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from mlxcel_engine.cli import options
from mlxcel_engine.cli.bench import bench
from mlxcel_engine.cli.parity import parity
from mlxcel_engine.cli.rounds import rounds
from mlxcel_engine.cli.signals import Stopped, stopping
from mlxcel_engine.cli.streams import outlive_readers
from mlxcel_engine.errors import MlxcelError, UsageError
from mlxcel_engine.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE, _FAILED = 2, 3

app = typer.Typer(
    name="mlxcel-engine",
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True, epilog="Example: mlxcel-engine parity -p 'What is the capital of France?'")
def root(context: typer.Context, version: options.Version = False) -> None:  # noqa: ARG001 - eager, handled by itself
    """Do the decode loops of MLX give the same tokens? Compares mlx-lm's command line, its server and our engine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(_USAGE)


app.command(
    epilog="Example: MLXCEL_SDPA_DETERMINISTIC=1 mlxcel-engine parity --expect-identical --json parity.json",
)(parity)
app.command(epilog="Example: mlxcel-engine bench --ctx 256 --ctx 2048 -n 64 --csv bench.csv")(bench)
app.command(
    epilog="Example: mlxcel-engine rounds --arm a='--path cli' --arm b='--path engine' --ctx 256 -n 64 --out ab.jsonl",
)(rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 a gate failed, 2 bad input, 3 a run failed, 128 + N for signal N."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    outlive_readers()
    try:
        with stopping():
            _refuse_bytes(args)
            code = int(get_command(app).main(args, prog_name="mlxcel-engine", standalone_mode=False) or 0)
            sys.stdout.flush()
            return code
    except Stopped as stopped:
        return _fail(str(stopped), stopped.exit_code, stopped, args)
    except TyperException as error:
        return _fail(f"{error.format_message().rstrip('.')}; see mlxcel-engine --help", _USAGE, error, args)
    except MlxcelError as error:
        return _fail(str(error), error.exit_code, error, args)
    except OSError as error:
        return _fail(f"cannot read or write: {error.strerror or error}", _FAILED, error, args)
    except MemoryError as error:
        return _fail("out of memory; take a smaller model, batch or context", _FAILED, error, args)
    except Exception as error:
        message = f"unexpected {type(error).__name__}: {error}; --debug shows the traceback"
        return _fail(message, _FAILED, error, args)


def _refuse_bytes(args: Sequence[str]) -> None:
    """Refuse what no record could hold: an argument whose bytes are no text."""
    for argument in args:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(f"the argument {argument} is not valid UTF-8; give another one, or rename the file")


def _fail(message: str, code: int, error: BaseException | None, args: Sequence[str]) -> int:
    if error is not None and "--debug" in args:
        traceback.print_exception(error)
    print(f"error: {' '.join(printable(message).split())}", file=sys.stderr)
    return code
