"""Tables that fit a terminal, or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from mlxcel_engine.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, JustifyMethod


def print_plainly(console: Console, printer: Callable[[], None]) -> None:
    """Let ``printer`` print to ``console``; off a terminal without padding at a line's end."""
    if console.is_terminal:
        printer()
        return
    with console.capture() as captured:
        printer()
    console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def make_table(console: Console, *columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """A table that fits a terminal, or one of bare, never cut columns for a pipe.

    Columns in ``right`` hold numbers; a cell of those in ``whole`` takes one line.
    """
    plain = not console.is_terminal
    table = Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        table.add_column(column, no_wrap=plain or column in whole, overflow="fold", justify=justify)
    return table


def plain(text: str, style: str = "") -> Text:
    """``text`` as it is, without markup and control characters: it may come from another program."""
    return Text(printable(text), style=style)
