"""The tokenizer of a Hugging Face folder, and what its side files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.tokenizer_files import TOKENIZER_FILE, tokenizer_from_folder
from support import toy_tokenizers

TOKENIZER = toy_tokenizers.byte_level([("<s>", True), ("</s>", True), ("<|eot_id|>", True)])
BEGIN, END, EOT = 256, 257, 258


def folder(path: Path, tokenizer: bytes = TOKENIZER, **files: object) -> Path:
    (path / TOKENIZER_FILE).write_bytes(tokenizer)
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def with_processor(*special: str, after: str | None = None) -> bytes:
    single = [{"SpecialToken": {"id": name, "type_id": 0}} for name in special]
    single.append({"Sequence": {"id": "A", "type_id": 0}})
    if after:
        single.append({"SpecialToken": {"id": after, "type_id": 0}})
    spec = json.loads(TOKENIZER)
    spec["post_processor"] = {
        "type": "Sequence",
        "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": single}],
    }
    return json.dumps(spec).encode()


def test_the_tokenizer_goes_through_as_it_is(tmp_path: Path) -> None:
    found = tokenizer_from_folder(folder(tmp_path))
    assert found.files == {TOKENIZER_FILE: TOKENIZER}
    assert found.end_token_ids == (EOT,)
    assert (found.chat_template, found.begin_token_id, found.add_begin_token) == ("", None, False)


def test_special_tokens_and_ends_come_from_all_the_files(tmp_path: Path) -> None:
    found = tokenizer_from_folder(
        folder(
            tmp_path,
            tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
            generation_config={"eos_token_id": [7, 8]},
            config={"eos_token_id": 9},
        )
    )
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found.end_token_ids == (7, 8, 9, END, EOT)
    assert found.begin_token_id == BEGIN


@pytest.mark.parametrize(
    ("tokenizer", "said", "adds"),
    [
        (TOKENIZER, None, False),
        (TOKENIZER, True, True),
        (with_processor("<s>"), None, True),
        (with_processor("<s>"), False, False),
        (with_processor(), None, False),
    ],
)
def test_the_begin_token_is_added_as_the_config_or_the_post_processor_says(
    tmp_path: Path, tokenizer: bytes, said: bool | None, adds: bool
) -> None:
    config = {"bos_token": "<s>"} | ({} if said is None else {"add_bos_token": said})
    found = tokenizer_from_folder(folder(tmp_path, tokenizer, tokenizer_config=config))
    assert found.add_begin_token is adds


def test_a_token_after_the_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"puts \['</s>'\] after a prompt"):
        tokenizer_from_folder(
            folder(
                tmp_path,
                with_processor("<s>", after="</s>"),
                tokenizer_config={"bos_token": "<s>"},
            )
        )


@pytest.mark.parametrize(
    "template", ["from config", [{"name": "x"}, {"name": "default", "template": "from config"}]]
)
def test_a_template_file_goes_before_the_config(tmp_path: Path, template: object) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": template})
    assert tokenizer_from_folder(tmp_path).chat_template == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert tokenizer_from_folder(tmp_path).chat_template == "from file"


def test_the_authors_sampling_counts_unless_the_author_decodes_greedily(tmp_path: Path) -> None:
    sampling = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True}
    found = tokenizer_from_folder(folder(tmp_path, generation_config=sampling))
    assert (found.temperature, found.top_p, found.top_k) == (0.6, 0.9, 20)
    found = tokenizer_from_folder(
        folder(tmp_path, generation_config={**sampling, "do_sample": False})
    )
    assert (found.temperature, found.top_p, found.top_k) == (None, None, None)


def test_missing_and_malformed_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"tokenizer\.json: No such file"):
        tokenizer_from_folder(tmp_path)
    folder(tmp_path, b"{}")
    with pytest.raises(ModelRejected, match="no vocabulary"):
        tokenizer_from_folder(tmp_path)
    folder(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelRejected, match=r"generation_config\.json: not JSON"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ModelRejected, match=r"generation_config\.json: not a JSON object"):
        tokenizer_from_folder(tmp_path)
