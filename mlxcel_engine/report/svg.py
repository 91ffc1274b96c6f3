"""What is printed on a terminal as a picture: an SVG that fetches nothing from elsewhere."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable

# rich's own format, but with fonts that the reader has: it would fetch one from the web otherwise.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
    font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
    white-space: pre;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal_svg(printer: Callable[[Console], None], title: str, columns: int) -> str:
    """The SVG document of what ``printer`` prints on a terminal of ``columns``; the last word of ``title`` names it."""
    console = Console(
        file=StringIO(), record=True, width=columns, force_terminal=True, color_system="truecolor", highlight=False
    )
    printer(console)
    return console.export_svg(title=title, code_format=_FORMAT, unique_id=title.split()[-1])
