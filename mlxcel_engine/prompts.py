"""From a user's text to the ids that every path gets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_engine.errors import UsageError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True)
class Prompt:
    """Prompt ids, as they go to every path; ``chat`` tells whether the chat template made them.

    ``boundary`` tokens are the history of a conversation, which its next turn begins with too; None where that is all
    but the last token.
    """

    name: str
    text: str
    ids: tuple[int, ...]
    chat: bool
    boundary: int | None = None

    @property
    def sha256(self) -> str:
        """See :func:`hash_ids`."""
        return hash_ids(self.ids)


def hash_ids(ids: tuple[int, ...]) -> str:
    """SHA-256 of ``ids`` written as comma-separated decimals, in hexadecimal."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def check_text(text: str) -> str:
    """Return ``text``.

    Raises:
        UsageError: it is empty, or holds bytes that are no text.

    """
    if not text:
        raise UsageError("the prompt is empty; give some text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError("the prompt is not valid UTF-8; convert it first")
    return text


def encode_prompt(tokenizer: TokenizerWrapper, name: str, text: str, *, chat: bool) -> Prompt:
    """Encode ``text`` as one user message through the chat template, or raw; see :func:`encode_messages`.

    A raw text gets special tokens unless it starts with the BOS already.

    Raises:
        UsageError: an empty text, one that encodes to nothing, or one that the template refuses.

    """
    check_text(text)
    if chat:
        return encode_messages(tokenizer, name, [{"role": "user", "content": text}])
    bos = tokenizer.bos_token
    ids = tokenizer.encode(text, add_special_tokens=bos is None or not text.startswith(bos))
    if not ids:
        raise UsageError(f"the prompt {text!r} encodes to no token; give some text")
    return Prompt(name, text, tuple(int(i) for i in ids), chat=False)


def encode_messages(tokenizer: TokenizerWrapper, name: str, messages: Sequence[Mapping[str, str]]) -> Prompt:
    """Encode a conversation through the chat template; its text is that of the last message.

    A rendered template is encoded without special tokens, since it writes its own. The history ends where the
    rendering with and that without the generation prompt part.

    Raises:
        UsageError: the template refuses it, or it encodes to nothing.

    """
    ids, closed = (_rendered(tokenizer, messages, prompting=prompting) for prompting in (True, False))
    text = messages[-1]["content"]
    if not ids:
        raise UsageError(f"the prompt {text!r} encodes to no token; give some text")
    common = next((place for place, (a, b) in enumerate(zip(ids, closed, strict=False)) if a != b), len(closed))
    boundary = min(common, len(ids) - 1) or None
    return Prompt(name, text, ids, chat=True, boundary=boundary)


def _rendered(
    tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, str]], *, prompting: bool
) -> tuple[int, ...]:
    try:
        rendered = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=prompting
        )
    except Exception as error:  # a template is code of the checkpoint's author and may raise anything
        message = f"the chat template cannot render the prompt ({one_line(error)}); feed it raw"
        raise UsageError(message) from error
    return tuple(int(i) for i in tokenizer.encode(rendered, add_special_tokens=False))


def check_vocabulary(what: str, ids: Iterable[int], known: int) -> None:
    """Refuse ids that the model has no embedding for, of which it has ``known``; 0 says that nobody knows.

    Raises:
        UsageError: names ``what`` has the id, and the id.

    """
    alien = next((token for token in ids if token >= known > 0), None)
    if alien is not None:
        raise UsageError(f"{what}: token id {alien} is outside the model's vocabulary of {known}; give others")


def check_context(prompt: Prompt, max_tokens: int, context_length: int | None) -> None:
    """Refuse a prompt that leaves no room for its answer in the model's context.

    Raises:
        UsageError: names both lengths and the remedy.

    """
    if context_length is not None and len(prompt.ids) + max_tokens > context_length:
        lengths = f"{len(prompt.ids)} prompt tokens + {max_tokens} new ones exceed the context of {context_length}"
        raise UsageError(f"{prompt.name}: {lengths}; shorten the prompt or generate fewer")
