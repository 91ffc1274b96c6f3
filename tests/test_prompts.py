"""From text to ids: templates, BOS, and prompts that are hardly there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from mlx_lm.utils import load_tokenizer

from mlxcel_engine.errors import UsageError
from mlxcel_engine.loader.synthetic import byte_tokenizer
from mlxcel_engine.prompts import Prompt, check_context, encode_prompt

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}" + (
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tokenizer(folder: Path, template: str | None = None, where: str = "json") -> Any:
    """A byte tokenizer with a BOS that it adds itself, and a chat template in one of the two places."""
    from tokenizers.processors import TemplateProcessing

    wrapped = byte_tokenizer()
    inner = wrapped._tokenizer
    inner.add_special_tokens({"bos_token": "<s>"})
    inner.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", inner.bos_token_id)]
    )
    inner.save_pretrained(str(folder))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    if template is not None and where == "json":
        config["chat_template"] = template
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template)
    config_file.write_text(json.dumps(config))
    return load_tokenizer(folder)


@pytest.mark.parametrize("where", ["json", "jinja"])
def test_a_template_is_found_in_json_and_in_a_file_and_its_bos_is_not_doubled(where: str, tmp_path: Path) -> None:
    loaded = tokenizer(tmp_path, TEMPLATE, where)
    assert loaded.has_chat_template
    prompt = encode_prompt(loaded, "p", "hi", chat=True)
    assert prompt.ids.count(loaded.bos_token_id) == 1
    assert prompt.ids[0] == loaded.bos_token_id
    assert loaded.decode(list(prompt.ids)) == "<s>[user]hi[assistant]"


def test_raw_text_gets_one_bos_even_if_it_brings_its_own(tmp_path: Path) -> None:
    loaded = tokenizer(tmp_path)
    assert not loaded.has_chat_template
    plain = encode_prompt(loaded, "p", "hi", chat=False)
    assert plain.ids == encode_prompt(loaded, "p", "<s>hi", chat=False).ids
    assert plain.ids.count(loaded.bos_token_id) == 1


def test_spaces_and_a_bos_alone_are_prompts_and_nothing_is_not(tmp_path: Path) -> None:
    loaded = tokenizer(tmp_path)
    assert len(encode_prompt(loaded, "p", "   ", chat=False).ids) == 4
    assert encode_prompt(loaded, "p", "<s>", chat=False).ids == (loaded.bos_token_id,)
    with pytest.raises(UsageError, match="the prompt is empty"):
        encode_prompt(loaded, "p", "", chat=False)


def test_a_template_that_fails_is_one_line(tmp_path: Path) -> None:
    loaded = tokenizer(tmp_path, "{{ raise_exception('only two\nturns') }}")
    with pytest.raises(UsageError, match=r"only two turns.*feed it raw"):
        encode_prompt(loaded, "p", "hi", chat=True)


def test_the_hash_tells_ids_apart() -> None:
    one, two = (Prompt("p", "", ids, chat=False).sha256 for ids in ((1, 23), (12, 3)))
    assert one != two
    assert Prompt("q", "other", (1, 23), chat=True).sha256 == one


def test_a_prompt_that_leaves_no_room_is_refused_with_both_lengths() -> None:
    prompt = Prompt("p", "", tuple(range(10)), chat=False)
    check_context(prompt, 6, 16)
    check_context(prompt, 100, None)
    with pytest.raises(UsageError, match=r"10 prompt tokens \+ 7 new ones exceed the context of 16"):
        check_context(prompt, 7, 16)
