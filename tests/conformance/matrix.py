"""The conformance matrix: ``python -m tests.conformance.matrix [--write docs/families.md] [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.metadata import version
from pathlib import Path

from tests.conformance.configs import CONFIGS, PARTS, UNRUNNABLE
from tests.conformance.measure import FamilyRow, Verdict, measure, proven

_COLUMNS = ("Model", "Families in it", "Stepped", "Alone", "In a batch", "Paged", "Batched view", "mlx-lm's batch")
_INTRO = """\
# Families

Written by `make families` with mlx {mlx} and mlx-lm {mlx_lm}. Each row is a tiny random float32 model of an `mlx-lm`
text architecture (tests/conformance/configs), compared with `generate_step` of the same prompt alone: the same tokens
and logprobs within 1e-4 are `right`. In brackets stands the largest difference of a logprob up to the first other
token. The engine runs each twice, exact and not ([engine.md](engine.md#exact-or-faster)); the larger difference counts.

- Stepped: how the engine steps it. Batched is one forward for all rows over our KV storage; row by row uses `mlx-lm`'s
  own caches, one set a sequence.
- Alone: one sequence on the engine, prompts of 1, 2 and 33 tokens, chunks of 16.
- In a batch: prompts of 3, 12, 40 and 1 tokens, chunks of 8, one joins after 4 steps and one leaves after 8; and two
  prompts of the same length.
- Paged: the same over paged KV, whose blocks are all free in the end; `n/a` with the reason that
  `supports_paged_decode` gives.
- Batched view: the same with the engine made to batch it, at two seeds, where all layers keep plain KV caches. The
  families that are right in all their rows are `BATCHED_FAMILIES`, and no others.
- mlx-lm's batch: the ragged prompts on `BatchGenerator`, which is what `mlx_lm.server` runs. A record, not a gate.

{models} models of {families} families: {batched} models batched, {rows} row by row; {unrunnable} families do not run
on a CPU.
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and with ``--write`` write the document; 1 if the engine is not right for a family."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.matrix", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the document")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure (default: all)")
    options = parser.parse_args(arguments)
    rows = []
    started = time.monotonic()
    for name in options.names or CONFIGS:
        try:
            rows.append(measure(name))
        except Exception as error:
            rows.append(_broken(name, error))
        print(f"{time.monotonic() - started:4.0f} s  {name}", file=sys.stderr)
    document = render(rows)
    print(document)
    if options.write:
        options.write.write_text(document)
    return 0 if all(row.right for row in rows) else 1


def render(rows: list[FamilyRow]) -> str:
    """Return the document of ``rows`` as Markdown."""
    batched = sum(row.stepped == "batched" for row in rows)
    intro = _INTRO.format(
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
        models=len(rows),
        families=len({row.architectures[0] for row in rows}),
        batched=batched,
        rows=len(rows) - batched,
        unrunnable=len(UNRUNNABLE),
    )
    table = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *(_line(_cells(row)) for row in rows)]
    unrunnable = [f"- `{name}`: {entry.reason}." for name, entry in UNRUNNABLE.items()]
    parts = ", ".join(f"`{name}`" for name in sorted(PARTS))
    sections = [
        intro,
        "\n".join(table),
        "## Proven families",
        ", ".join(f"`{name}`" for name in sorted(proven(rows))),
        "## Not run",
        "\n".join(unrunnable),
        f"Modules of `mlx_lm.models` that are parts of models: {parts}.",
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def parse(document: str) -> list[FamilyRow]:
    """Read the table of :func:`render` back."""
    lines = [line for line in document.splitlines() if line.startswith("| ")][2:]
    return [_row(line.strip("| ").split(" | ")) for line in lines]


def _cells(row: FamilyRow) -> list[str]:
    verdicts = (row.alone, row.batch, row.paged, row.view, row.mlx_lm)
    return [row.name, ", ".join(row.architectures), row.stepped, *map(str, verdicts)]


def _row(cells: list[str]) -> FamilyRow:
    name, architectures, stepped, *words = cells
    alone, batch, paged, view, mlx_lm = (Verdict(*_split(word)) for word in words)
    return FamilyRow(name, tuple(architectures.split(", ")), stepped, alone, batch, paged, view, mlx_lm)


def _split(cell: str) -> tuple[str, str]:
    word, _, detail = cell.partition(" (")
    return word, detail.removesuffix(")")


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("<", "").replace(">", "") for cell in cells) + " |"


def _broken(name: str, error: Exception) -> FamilyRow:
    raised = Verdict("raises", f"{type(error).__name__}: {str(error)[:80]}")
    return FamilyRow(name, (name,), "not built", raised, raised, raised, raised, raised)


if __name__ == "__main__":
    sys.exit(main())
