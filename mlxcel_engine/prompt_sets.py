"""Several prompts: the built-in set, and files of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxcel_engine.errors import UsageError
from mlxcel_engine.prompts import Prompt, check_text, encode_messages, encode_prompt

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

BUILT_IN = "built-in"

_TEXTS = {
    "prose": "Write a short paragraph about the sea at night.",
    "code": "Write a Python function that returns the n-th Fibonacci number, with a docstring and two tests.",
    "list": "List ten capitals of Europe, one on a line, each with its country.",
    "german": "Erkläre in drei Sätzen, warum der Himmel tagsüber blau und abends rot ist.",
    "japanese": "富士山について、三つの文で説明してください。",
    "repeat": "again " * 40,
}
_LINE = "Shelf {number} of the library holds {books} books, most of them about rivers.\n"
_QUESTION = "How many books are on shelf 3?"


@dataclass(frozen=True)
class PromptText:
    """A prompt before it is encoded: one user message, or a conversation (then ``text`` is its last message)."""

    name: str
    text: str
    messages: tuple[dict[str, str], ...] = ()

    def encode(self, tokenizer: TokenizerWrapper, *, chat: bool) -> Prompt:
        """Encode it.

        Raises:
            UsageError: a conversation of several messages without a chat template, and as :func:`encode_prompt`.

        """
        if not self.messages:
            return encode_prompt(tokenizer, self.name, self.text, chat=chat)
        if chat:
            return encode_messages(tokenizer, self.name, self.messages)
        if len(self.messages) > 1:
            raise UsageError(
                f"prompt {self.name!r} has {len(self.messages)} messages and no chat template renders them"
            )
        return encode_prompt(tokenizer, self.name, self.text, chat=False)


def built_in_prompts(tokenizer: TokenizerWrapper, *, chat: bool, chunk: int, room: int | None) -> list[Prompt]:
    """Encode the eight prompts: prose, code, a list, two more languages, a repeated word, one token, a long one.

    The long one takes more than one chunk, if ``room`` tokens of context allow; the single token is always raw.
    """
    prompts = [encode_prompt(tokenizer, name, text, chat=chat) for name, text in _TEXTS.items()]
    token = encode_prompt(tokenizer, "token", "The", chat=False)
    prompts.append(Prompt("token", str(tokenizer.decode([token.ids[-1]])), token.ids[-1:], chat=False))
    longer = _lines(tokenizer, _most_lines(tokenizer, chunk, chat=chat) + 1, chat=chat)
    if room is not None and len(longer.ids) > room:
        longer = _lines(tokenizer, _most_lines(tokenizer, room, chat=chat), chat=chat)
    return [*prompts, longer]


def _most_lines(tokenizer: TokenizerWrapper, tokens: int, *, chat: bool) -> int:
    """How many whole lines fit into ``tokens``; 1 if none does."""
    few, many = 1, 2
    while len(_lines(tokenizer, many, chat=chat).ids) <= tokens:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if len(_lines(tokenizer, middle, chat=chat).ids) <= tokens else (few, middle)
    return few


def _lines(tokenizer: TokenizerWrapper, count: int, *, chat: bool) -> Prompt:
    shelves = "".join(_LINE.format(number=number, books=17 * number % 90 + 10) for number in range(1, count + 1))
    return encode_prompt(tokenizer, "long", shelves + _QUESTION, chat=chat)


def parse_prompts(name: str, content: str) -> list[PromptText]:
    """Parse a file ``name``: one prompt a line, or a JSON object a line (``messages``, and perhaps ``name``).

    It is read as JSON lines when its name ends in .jsonl. Empty lines are skipped. What else Unicode
    calls a line's end ends none here: JSON strings may hold it.

    Raises:
        UsageError: names the line.

    """
    read = _parse_json if name.endswith(".jsonl") else _parse_line
    found = [
        read(f"{name}, line {number}", f"prompt-{number}", line)
        for number, line in enumerate(re.split("\r\n?|\n", content), 1)
        if line.strip()
    ]
    if not found:
        raise UsageError(f"{name} has no prompt; give one a line")
    names = [prompt.name for prompt in found]
    for one in names:
        if names.count(one) > 1:
            raise UsageError(f"{name}: two prompts are called {one!r}; give each its own name")
    return found


def _parse_line(where: str, name: str, line: str) -> PromptText:  # noqa: ARG001 - nothing can be wrong with it
    return PromptText(name, check_text(line))


def _parse_json(where: str, name: str, line: str) -> PromptText:
    remedy = 'give {"messages": [{"role": "user", "content": "..."}]}, and perhaps a "name"'
    try:
        item: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise UsageError(f"{where}: no JSON ({why}); {remedy}") from None
    if not isinstance(item, dict) or set(item) - {"messages", "name"}:
        raise UsageError(f"{where}: no such object; {remedy}")
    messages, called = item.get("messages"), item.get("name", name)
    if not isinstance(messages, list) or not messages or not isinstance(called, str) or not called:
        raise UsageError(f"{where}: no such object; {remedy}")
    for message in messages:
        strings = isinstance(message, dict) and all(isinstance(value, str) for value in message.values())
        if not strings or set(message) != {"role", "content"}:
            raise UsageError(f"{where}: a message is no object of role and content; {remedy}")
        check_text(message["content"])
        check_text(message["role"])
    check_text(called)
    return PromptText(called, messages[-1]["content"], tuple(messages))
