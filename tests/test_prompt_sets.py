"""The built-in prompts and files of prompts."""

from __future__ import annotations

import pytest

from mlxcel_engine.errors import UsageError
from mlxcel_engine.loader.synthetic import byte_tokenizer
from mlxcel_engine.prompt_sets import PromptText, built_in_prompts, parse_prompts

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"
JSON = '{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "two roads"}]}'


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("chunk", [64, 300, 2048])
def test_the_built_in_set_is_eight_and_the_long_one_spans_two_chunks(chunk: int, chat: bool) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    prompts = {prompt.name: prompt for prompt in built_in_prompts(tokenizer, chat=chat, chunk=chunk, room=None)}
    assert list(prompts) == ["prose", "code", "list", "german", "japanese", "repeat", "token", "long"]
    assert len(prompts["token"].ids) == 1
    assert not prompts["token"].chat
    assert {prompt.chat for name, prompt in prompts.items() if name != "token"} == {chat}
    assert chunk < len(prompts["long"].ids) < chunk + 130
    assert "富士山" in prompts["japanese"].text
    assert prompts["repeat"].text.split() == ["again"] * 40


def test_the_long_prompt_fits_the_context() -> None:
    (*_, long) = built_in_prompts(byte_tokenizer(), chat=False, chunk=2048, room=400)
    assert 300 < len(long.ids) <= 400


def test_a_file_has_a_prompt_a_line() -> None:
    assert parse_prompts("p.txt", "one\n\n  two \nthree") == [
        PromptText("prompt-1", "one"),
        PromptText("prompt-3", "  two "),
        PromptText("prompt-4", "three"),
    ]


def test_only_a_newline_ends_a_line() -> None:
    odd = "one\u2028still\x0cthe\x85same"
    assert [prompt.text for prompt in parse_prompts("p.txt", f"{odd}\r\n\r\ntwo\n")] == [odd, "two"]
    (prompt,) = parse_prompts("p.jsonl", JSON.replace("two roads", odd.replace("\x0c", "")))
    assert prompt.text == odd.replace("\x0c", "")


def test_json_lines_hold_conversations_and_names() -> None:
    first, second = parse_prompts("p.jsonl", JSON + '\n{"name": "b", "messages": [{"role": "user", "content": "x"}]}')
    assert (first.name, first.text, len(first.messages)) == ("prompt-1", "two roads", 2)
    assert (second.name, second.text) == ("b", "x")
    tokenizer = byte_tokenizer()
    with pytest.raises(UsageError, match="'prompt-1' has 2 messages and no chat template renders them"):
        first.encode(tokenizer, chat=False)
    assert len(second.encode(tokenizer, chat=False).ids) == 1
    tokenizer.chat_template = TEMPLATE
    encoded = first.encode(tokenizer, chat=True)
    assert tokenizer.decode(list(encoded.ids)) == "<system>be brief<user>two roads<assistant>"
    assert encoded.text == "two roads"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.txt", "\n \n", "p.txt has no prompt"),
        ("p.jsonl", "two roads", "p.jsonl, line 1: no JSON"),
        ("p.jsonl", f'{JSON}\n["x"]', "p.jsonl, line 2: no such object"),
        ("p.jsonl", '{"messages": []}', "no such object"),
        ("p.jsonl", '{"messages": ["x"]}', "a message is no object of role and content"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": 3}]}', "a message is no object of role and content"),
        ("p.jsonl", '{"messages": [{"role": "user"}]}', "a message is no object of role and content"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": ""}]}', "the prompt is empty"),
        ("p.jsonl", '{"prompt": "x"}', "no such object"),
        ("p.jsonl", "[" * 100_000, "p.jsonl, line 1: no JSON"),
        ("p.jsonl", "9" * 5_000, "p.jsonl, line 1: no JSON"),
        ("p.jsonl", JSON[:-1] + ', "name": "\\ud800"}', "not valid UTF-8"),
        ("p.jsonl", '{"messages": [{"role": "\\ud800", "content": "x"}]}', "not valid UTF-8"),
        ("p.jsonl", JSON[:-1] + ', "name": 3}', "no such object"),
        ("p.jsonl", "\n".join([JSON[:-1] + ', "name": "a"}'] * 2), "two prompts are called 'a'"),
    ],
)
def test_a_bad_file_names_its_line(name: str, content: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_prompts(name, content)
