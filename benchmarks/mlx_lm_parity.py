"""Where ``mlx-lm``'s own loops differ: ``python -m benchmarks.mlx_lm_parity --out FOLDER``.

It runs the built-in prompts through ``cli``, ``mlx-server`` and ``mlx-batch-4`` on a checkpoint in float32, and
``cli`` against ``mlx-batch-3`` on a tiny random model of every family of docs/families.md; then writes README.md beside
the data. What is there already is not run again without ``--force``. ``--only`` runs one part, among them some that are
not run otherwise: bfloat16 is slow on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlxcel_engine  # noqa: F401  # before mlx: it chooses the BLAS
from benchmarks.pages import in_repository, machine_line, markdown_table, write_whole
from mlxcel_engine.device import select_device
from mlxcel_engine.engine.sampling import GREEDY
from mlxcel_engine.environment import collect_environment
from mlxcel_engine.parity.cases import Case
from mlxcel_engine.parity.run import ParityOptions, run_parity
from mlxcel_engine.paths import path_makers
from mlxcel_engine.prompts import Prompt
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.records.parity import ParityRecord, ParityRow
from tests.conformance.configs import CONFIGS
from tests.loaded import tiny_loaded

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Part:
    """The built-in prompts in one dtype."""

    dtype: str
    cases: str
    tokens: int
    chunk: int


PARTS = {
    "float32": Part("float32", "greedy,seeded", 32, 256),
    "bfloat16-greedy": Part("bfloat16", "greedy", 6, 64),
    "bfloat16-seeded": Part("bfloat16", "seeded", 6, 64),
}
_DEFAULT, _FAMILIES = "float32", "families"
_WIDTH, _FAMILY_TOKENS, _PROMPT = 3, 32, tuple(range(3, 24))


class _Silent:
    """An observer that shows nothing."""

    def path_started(self, case: str, prompt: str, path: str, max_tokens: int) -> None:
        """See :class:`~mlxcel_engine.parity.run.Observer`."""

    def token(self, count: int) -> None:
        """See :class:`~mlxcel_engine.parity.run.Observer`."""


@dataclass(frozen=True)
class Family:
    """The row of one tiny model, or why it has none; ``forced`` is the largest difference over ``cli``'s tokens."""

    name: str
    row: ParityRow
    forced: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing and write README.md; 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-m", "--model", default="default")
    parser.add_argument("--only", choices=[*PARTS, _FAMILIES], help=f"run this part, not {_DEFAULT} and {_FAMILIES}")
    parser.add_argument("--force", action="store_true", help="run again what is there")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = (_DEFAULT, _FAMILIES) if options.only is None else (options.only,)
    failed = False
    for name in chosen:
        file = options.out / f"built-in-{name}.json"
        if name in PARTS and (options.force or not _complete(file)):
            failed |= subprocess.run(_command(options.model, PARTS[name], file), check=False).returncode != 0
    file = options.out / "families.json"
    if _FAMILIES in chosen and (options.force or not file.exists()):
        environment = collect_environment("float32", select_device("auto"), os.environ)
        families = [_as_json(measure(name, environment)) for name in CONFIGS]
        record = {"environment": environment.model_dump(mode="json"), "families": families}
        write_whole(file, json.dumps(record, indent=1) + "\n")
    write_whole(options.out / "README.md", render(options.out, options.model))
    return int(failed)


def measure(name: str, environment: Environment) -> Family:
    """Run the tiny model ``name``."""
    makers = path_makers(_WIDTH)
    paths = [makers["cli"](), makers[f"mlx-batch-{_WIDTH}"]()]
    prompt = Prompt("ids", "", _PROMPT, chat=False)
    settings = ParityOptions(_FAMILY_TOKENS, 2048, teacher_forced=True)
    cases = [Case("greedy", GREEDY)]
    outcome = run_parity(environment, tiny_loaded(name), cases, [prompt], paths, settings, _Silent(), lambda _: None)
    (row,) = outcome.record.rows
    forced = [item.max_abs_logprob_diff for item in outcome.record.forced]
    print(f"{name}: {row.verdict} {row.reason}", file=sys.stderr)
    return Family(name, row, forced[0] if forced else None)


def render(folder: Path, model: str) -> str:
    """README.md of the data in ``folder``."""
    parts = [_INTRO.format(model=model, folder=in_repository(folder))]
    for name in PARTS:
        file = folder / f"built-in-{name}.json"
        if file.exists():
            parts.append(_built_in(name, ParityRecord.model_validate_json(file.read_text())))
    file = folder / "families.json"
    if file.exists():
        data = json.loads(file.read_text())
        families = [_from_json(item) for item in data["families"]]
        parts.append(_families(families, Environment.model_validate(data["environment"])))
    return "\n\n".join(part.strip() for part in parts) + "\n"


_INTRO = """\
# Where mlx-lm's own loops differ

The built-in prompts through `cli` (`stream_generate`), `mlx-server` (`BatchGenerator`, one request) and `mlx-batch-4`
(the same with three neighbours), and `cli` against `mlx-batch-3` on a tiny random model of every family:
`python -m benchmarks.mlx_lm_parity -m {model} --out {folder}`.

How to read a row: [parity](../../parity.md). In this load the compared request is prefilled alone and others join it;
what a padded prefill of several prompts does is in [families.md](../../families.md).
"""


def _built_in(name: str, record: ParityRecord) -> str:
    config = record.config
    lines = [
        f"## The built-in prompts, {name}",
        f"{config.model.label}, {config.model.weights} weights, {config.max_tokens} tokens, chunk "
        f"{config.prefill_chunk}. {machine_line(record.environment.model_dump())} "
        f"Data: [built-in-{name}.json](built-in-{name}.json).",
        markdown_table(
            ("case", "prompt", "pair", "verdict", "logits", "noise", "why"),
            [
                (
                    row.case,
                    row.prompt,
                    f"{row.left} - {row.right}",
                    _verdict(row),
                    row.logits or "-",
                    _noise(row),
                    row.reason,
                )
                for row in record.rows
            ],
        ),
    ]
    return "\n\n".join(lines)


def _families(families: list[Family], environment: Environment) -> str:
    differing = [family for family in families if family.row.verdict != "identical"]
    noises = [family.row.max_abs_logprob_diff or 0.0 for family in families if family.row.verdict == "identical"]
    lines = [
        "## cli against mlx-batch-3, every tiny family, float32",
        f"{len(families)} models: {len(noises)} identical (largest noise {max(noises, default=0.0):.0e} nats), "
        f"{len(differing)} not. Greedy, {_FAMILY_TOKENS} tokens, a prompt of {len(_PROMPT)}. The last column is the "
        "largest difference of a logprob when both are fed the same tokens.",
        f"{machine_line(environment.model_dump())} Data: [families.json](families.json).",
        markdown_table(
            ("model", "verdict", "noise", "forced", "why"),
            [
                (
                    family.name,
                    _verdict(family.row),
                    _noise(family.row),
                    "-" if family.forced is None else f"{family.forced:.0e}",
                    family.row.reason,
                )
                for family in differing
            ],
        ),
    ]
    return "\n\n".join(lines)


def _verdict(row: ParityRow) -> str:
    return row.verdict if row.index is None else f"{row.verdict} at {row.index}"


def _noise(row: ParityRow) -> str:
    return "-" if row.max_abs_logprob_diff is None else f"{row.max_abs_logprob_diff:.1e}"


def _command(model: str, part: Part, file: Path) -> list[str]:
    options = ["-m", model, "--prompts", "built-in", "--paths", "cli,mlx-server,mlx-batch-4", "--dtype", part.dtype]
    options += ["--cases", part.cases, "-n", str(part.tokens), "--prefill-chunk", str(part.chunk)]
    options += ["--json", str(file), "--force"]
    return [sys.executable, "-m", "mlxcel_engine", "parity", *options]


def _complete(file: Path) -> bool:
    return file.exists() and bool(json.loads(file.read_text())["complete"])


def _as_json(family: Family) -> dict[str, Any]:
    return {"name": family.name, "forced": family.forced, "row": family.row.model_dump(mode="json")}


def _from_json(item: dict[str, Any]) -> Family:
    return Family(item["name"], ParityRow.model_validate(item["row"]), item["forced"])


if __name__ == "__main__":
    sys.exit(main())
