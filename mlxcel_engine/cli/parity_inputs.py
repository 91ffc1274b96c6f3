"""What ``parity`` reads: prompts, sampling, earlier records, the choice of paths."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mlxcel_engine.cli.setup import warn
from mlxcel_engine.engine.sampling.config import SamplingConfig
from mlxcel_engine.errors import UsageError
from mlxcel_engine.prompt_sets import BUILT_IN, PromptText, built_in_prompts, parse_prompts
from mlxcel_engine.prompts import check_context, check_text, check_vocabulary
from mlxcel_engine.records.parity import ParityRecord

if TYPE_CHECKING:
    from mlxcel_engine.engine.shapes import FixedShapes
    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.paths import DecodePath
    from mlxcel_engine.prompts import Prompt

_PROMPT_CACHE_PATHS = ("cache-miss", "cache-hit")
DEFAULT_PROMPT = "Why is the sky blue? Answer in two sentences."
_SHELVES = ("rivers", "clocks", "bridges", "tea", "birds", "maps", "bread")
LONGER_PROMPT = "\n".join(
    (
        "These are the shelves of our library.",
        *(
            f"{number}. Shelf {number} stands by the {'door' if number % 3 else 'window'} and holds books on {about}."
            for number, about in enumerate(_SHELVES * 4, start=1)
        ),
        "Which shelves hold books on tea, and where do they stand? Answer in two sentences.",
    )
)
"""Takes more than two chunks of the invariant mode on a CPU."""


def read_text(option: str, file: str) -> str:
    """Read a UTF-8 file, without its byte order mark if it has one; ``-`` is stdin.

    Raises:
        UsageError: it cannot be read, or is not UTF-8; names the option.

    """
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option} {file}: {error.strerror}; give a readable file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option} {file}: not UTF-8; convert it first") from None


def prompt_texts(
    prompt: str | None, prompt_file: str | None, prompts: str | None, *, default: str = DEFAULT_PROMPT
) -> list[PromptText] | None:
    """The prompts of the options, or the ``default`` one; None is the built-in set.

    Newlines at the end of ``prompt_file`` are not part of the prompt.
    """
    given = [
        name
        for name, value in (("--prompt", prompt), ("--prompt-file", prompt_file), ("--prompts", prompts))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other; give one of them")
    if prompts == BUILT_IN:
        return None
    if prompts is not None:
        return parse_prompts(prompts, read_text("--prompts", prompts))
    if prompt_file is not None:
        prompt = read_text("--prompt-file", prompt_file).rstrip("\r\n")
    return [PromptText("prompt-1", check_text(default if prompt is None else prompt))]


def encode_prompts(
    loaded: LoadedModel, texts: list[PromptText] | None, max_tokens: int, chunk: int, *, raw: bool
) -> list[Prompt]:
    """Encode ``texts``, or the built-in set, for a model; says so where it has no chat template.

    Raises:
        UsageError: a prompt that cannot be encoded, leaves no room in the context, or has ids that the model lacks.

    """
    from mlxcel_engine.engine.families import family_support

    chat = not raw
    if chat and not loaded.tokenizer.has_chat_template:
        warn(f"{loaded.record.label} has no chat template: the prompt is fed raw")
        chat = False
    context = loaded.record.context_length
    if texts is None:
        room = None if context is None else context - max_tokens
        encoded = built_in_prompts(loaded.tokenizer, chat=chat, chunk=chunk, room=room)
    else:
        encoded = [text.encode(loaded.tokenizer, chat=chat) for text in texts]
    known = family_support(loaded.model).tokens
    for prompt in encoded:
        check_context(prompt, max_tokens, context)
        check_vocabulary(prompt.name, prompt.ids, known)
    return encoded


def read_sampling(file: str | None) -> SamplingConfig | None:
    """Read ``--sampling``.

    Raises:
        UsageError: it is no JSON object, or no sampling config.

    """
    if file is None:
        return None
    text = read_text("--sampling", file)
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--sampling {file}: no JSON ({error}); give an object of sampling options") from None
    return SamplingConfig.parse(parsed)


def check_bias(loaded: LoadedModel, sampling: SamplingConfig | None) -> None:
    """Refuse a bias of a token that the model lacks; see :func:`check_vocabulary`."""
    from mlxcel_engine.engine.families import family_support

    if sampling is not None:
        check_vocabulary("--sampling", sampling.logit_bias, family_support(loaded.model).tokens)


def read_record(option: str, file: str) -> ParityRecord:
    """Read a parity record.

    Raises:
        UsageError: it is none, or one of another version.

    """
    text = read_text(option, file)
    try:
        return ParityRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{option} {file}: no parity record of this version ({place}: {first['msg']})") from None


def names_of(option: str, names: str) -> list[str]:
    """Split a comma-separated list; a name twice counts once.

    Raises:
        UsageError: an empty name in a list of several.

    """
    found = list(dict.fromkeys(name.strip() for name in names.split(",")))
    if found == [""]:
        return []
    if "" in found:
        raise UsageError(f"{option} {names!r} holds an empty name; separate names by single commas")
    return found


def choose_paths(
    names: str | None, width: int, shapes: FixedShapes | None = None, *, prompt_cache: bool
) -> list[DecodePath]:
    """Make the paths that are named, or all of them, in the order of the tables; with ``shapes`` there are more.

    Raises:
        UsageError: a name that no path has, or no path is left.

    """
    from mlxcel_engine.paths import invariant_makers, path_makers

    makers = path_makers(width)
    if shapes is not None:
        makers |= invariant_makers(shapes)
    wanted = list(makers) if names is None else names_of("--paths", names)
    for name in wanted:
        if name not in makers:
            raise UsageError(f"--paths {name!r}: no such path; give some of {', '.join(makers)}")
    wanted = [name for name in wanted if prompt_cache or not name.startswith(_PROMPT_CACHE_PATHS)]
    chosen = [make() for name, make in makers.items() if name in wanted]
    if not chosen:
        without = "" if prompt_cache else " without the prompt cache's"
        raise UsageError(f"--paths {names!r}: no path is left{without}; give some of {', '.join(makers)}")
    return chosen
