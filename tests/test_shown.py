"""What the documents show exists: commands and their options, make targets, variables, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.exceptions import TyperException
from typer.main import get_command

from mlxcel_engine.cli.main import app
from mlxcel_engine.rounds.arms import parse_extra

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]  # of a command with subcommands, a group
MAKEFILE = (ROOT / "Makefile").read_text()
# It quotes the options of mlx-lm's commands; test_adr.py holds them to the installed ones.
OF_MLX_LM = DOCS / "adr" / "0007-unified-batch-native-engine.md"


def commands_of(text: str) -> list[list[str]]:
    """The words of each command of a console block, and of each of ours in a line of text."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    lines += re.findall(r"`(mlxcel-engine [a-z]+ [^`]+)`", text)
    return [shlex.split(line, comments=True) for line in lines]


def wrong(words: list[str]) -> str | None:
    """What of a command does not exist; None for one that can be run, or that is no matter of ours."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    words = words[: words.index("|")] if "|" in words else words
    program, *rest = words
    if program == "make":
        return next((target for target in rest if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)), None)
    if program.endswith("python") and rest[0] == "-m":
        return None if (ROOT / rest[1].replace(".", "/")).with_suffix(".py").is_file() else rest[1]
    return wrong_options(rest) if program.endswith("mlxcel-engine") else None


def wrong_options(words: list[str]) -> str | None:
    """What ``mlxcel-engine`` says against the words behind it, those of the arms of ``rounds`` included."""
    name, *options = words
    try:
        context = COMMANDS[name].make_context(name, options)
    except (TyperException, KeyError) as error:
        return repr(error)
    if name != "rounds":
        return None
    arms = [arm.partition("=")[2] for arm in context.params["arm"] or ()]
    for text in (*arms, context.params["extra"]):
        flags = [word for word in parse_extra(text) if not word.startswith(("ENV:", "PYTHON:"))]
        if said := wrong_options(["bench", *flags]):
            return said
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_that_is_shown_can_be_given(page: Path) -> None:
    assert [(words, said) for words in commands_of(page.read_text()) if (said := wrong(words))] == []


@pytest.mark.parametrize(
    "line",
    [
        "MLXCEL_BLAS=mkl mlxcel-engine parity --expect-equal",
        "mlxcel-engine bench --ctx none",
        "mlxcel-engine serve --port 1",
        'mlxcel-engine rounds --arm a="--path cli" --arm b="--pathe cli" --out r.jsonl',
        "mlxcel-engine bench --path cli --json - --fast | cat",
        "make engine-pairity",
        "python -m benchmarks.none --out x",
    ],
)
def test_one_that_cannot_is_found(line: str) -> None:
    (words,) = commands_of(f"```console\n$ {line}\n```")
    assert wrong(words)


def test_all_three_commands_are_shown() -> None:
    shown = [words for page in PAGES for words in commands_of(page.read_text())]
    assert len(shown) >= 30
    named = {words[1] for words in shown if words[0] == "mlxcel-engine"}
    assert named == set(COMMANDS)


def unknown_names(text: str) -> set[str]:
    """Long options and variables in ``text`` that neither a command nor a script has."""
    options = {option for command in COMMANDS.values() for one in command.params for option in one.opts}
    options |= {option for command in COMMANDS.values() for one in command.params for option in one.secondary_opts}
    scripts = "\n".join(
        file.read_text() for folder in ("benchmarks", "tests") for file in (ROOT / folder).rglob("*.py")
    )
    options |= set(re.findall(r'add_argument\((?:"-\w", )?"(--[a-z-]+)"', scripts)) | {"--help", "--version"}
    variables = set(
        re.findall(r"MLXCEL_[A-Z_]+", "".join(f.read_text() for f in (ROOT / "mlxcel_engine").rglob("*.py")))
    )
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) | set(re.findall(r"MLXCEL_[A-Z_]+", text))
    return named - options - variables


def test_every_option_and_variable_that_is_named_exists() -> None:
    text = "\n".join(page.read_text() for page in PAGES if page != OF_MLX_LM)
    assert unknown_names(text) == set()
    assert unknown_names("`--noise-bounds` and `MLXCEL_THREADS`") == {"--noise-bounds", "MLXCEL_THREADS"}


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page to files, or to headings, that are not there."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        if not link.startswith("https://") and not (target.exists() and (not heading or heading in headings(target))):
            found.append(link)
    return found


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_a_link_that_does_not_is_found() -> None:
    text = "[a](docs/engine.md) [b](docs/motor.md) [c](docs/engine.md#the-files) [d](docs/engine.md#the-lies) [e](#x)"
    assert broken_links(ROOT / "README.md", text) == ["docs/motor.md", "docs/engine.md#the-lies", "#x"]
