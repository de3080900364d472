"""What a gateway needs of a model's tokenizer, read from a Hugging Face folder; GGUF is next door.

Nothing here tokenizes: the engine knows token ids only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from headrace_engine.errors import ModelRejected

TOKENIZER_FILE: Final = "tokenizer.json"
"""Name under which the tokenizer travels, in the format of the ``tokenizers`` library."""

END_OF_TURN: Final = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    }
)
"""Special tokens that end a turn whatever else the files name as the end."""

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The tokenizer's part of a model card; fields are named as there."""

    files: Mapping[str, bytes]
    """By name; always ``tokenizer.json``."""
    chat_template: str
    """Jinja source; empty when the model has none."""
    special_tokens: Mapping[str, str]
    """Text of ``bos_token``, ``eos_token``, ..."""
    end_token_ids: tuple[int, ...]
    """Ascending."""
    begin_token_id: int | None
    add_begin_token: bool
    """Whether ``begin_token_id`` belongs before a raw prompt. Never true without the id."""
    temperature: float | None = None
    """Default sampling of the model's author; None: none given."""
    top_p: float | None = None
    top_k: int | None = None


def tokenizer_from_folder(folder: Path) -> TokenizerFiles:
    """Reads the tokenizer of a Hugging Face folder; ``tokenizer.json`` goes through as it is.

    Raises ModelRejected naming the file that is missing, malformed, or asks for what is not offered.
    """
    data = _read_bytes(folder / TOKENIZER_FILE)
    tokenizer = _parse(folder / TOKENIZER_FILE, data)
    config = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    ids = _ids_by_text(folder, tokenizer)
    special = {name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name)))}
    ends = {ids[text] for text in END_OF_TURN if text in ids}
    if (eos := special.get("eos_token")) in ids:
        ends.add(ids[eos])
    for source in (generation, _optional(folder / "config.json")):
        ends.update(_id_list(source.get("eos_token_id")))
    begin = ids.get(special.get("bos_token", ""))
    return TokenizerFiles(
        files={TOKENIZER_FILE: data},
        chat_template=_template(folder, config),
        special_tokens=special,
        end_token_ids=tuple(sorted(ends)),
        begin_token_id=begin,
        add_begin_token=begin is not None and _adds_begin(folder, config, tokenizer, begin, ids),
        temperature=_number(generation, "temperature"),
        top_p=_number(generation, "top_p"),
        top_k=None if (top_k := _number(generation, "top_k")) is None else int(top_k),
    )


def _adds_begin(
    folder: Path,
    config: Mapping[str, object],
    tokenizer: Mapping[str, object],
    begin: int,
    ids: Mapping[str, int],
) -> bool:
    """Whether the begin token goes before a prompt: said outright, or by the post-processor."""
    first, rest = _added_around(tokenizer)
    if rest:
        raise ModelRejected(
            f"{folder / TOKENIZER_FILE}: its post-processor puts {rest!r} after a prompt; "
            "only a begin token before it is supported"
        )
    said = config.get("add_bos_token")
    if isinstance(said, bool):
        return said
    return first is not None and ids.get(first) == begin


def _added_around(tokenizer: Mapping[str, object]) -> tuple[str | None, list[str]]:
    """The special token that the post-processor puts first, and those that it puts elsewhere."""
    processor = _mapping(tokenizer.get("post_processor"))
    stages = _mappings(processor.get("processors")) if processor else []
    for stage in [processor, *stages]:
        if stage.get("type") == "TemplateProcessing":
            names = [
                str(_mapping(piece["SpecialToken"]).get("id")) if "SpecialToken" in piece else None
                for piece in _mappings(stage.get("single"))
            ]
            rest = [name for name in names[1:] if name is not None]
            return (names[0] if names else None), rest
    return None, []


def _template(folder: Path, config: Mapping[str, object]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return _read_bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelRejected(f"{path}: not UTF-8") from error
    template = config.get("chat_template")
    if isinstance(template, str):
        return template
    for named in _mappings(template):
        if named.get("name") == "default":
            return str(named.get("template", ""))
    return ""


def _number(generation: Mapping[str, object], name: str) -> float | None:
    """A default of the author's sampling; none when the author decodes greedily."""
    value = generation.get(name)
    if generation.get("do_sample") is False or isinstance(value, bool):
        return None
    return value if isinstance(value, (int, float)) else None


def _ids_by_text(folder: Path, tokenizer: Mapping[str, object]) -> dict[str, int]:
    model = _mapping(tokenizer.get("model"))
    vocab = model.get("vocab")
    ids: dict[str, int] = {}
    if isinstance(vocab, Mapping):
        ids.update(cast("Mapping[str, int]", vocab))
    elif isinstance(vocab, Sequence) and not isinstance(vocab, str):  # Unigram: [text, score] rows
        rows = cast("Sequence[Sequence[object]]", vocab)
        ids.update({str(row[0]): i for i, row in enumerate(rows)})
    else:
        raise ModelRejected(f"{folder / TOKENIZER_FILE}: it has no vocabulary")
    for token in _mappings(tokenizer.get("added_tokens")):
        number = token.get("id")
        if isinstance(number, int):
            ids[str(token.get("content"))] = number
    return ids


def _id_list(value: object) -> Iterable[int]:
    if isinstance(value, int):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [i for i in cast("Sequence[object]", value) if isinstance(i, int)]
    return ()


def _token_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    text = _mapping(value).get("content")
    return text if isinstance(text, str) else None


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [_mapping(item) for item in cast("Sequence[object]", value)]


def _optional(path: Path) -> Mapping[str, object]:
    return _parse(path, _read_bytes(path)) if path.is_file() else {}


def _parse(path: Path, data: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(data)
    except ValueError as error:
        raise ModelRejected(f"{path}: not JSON ({error})") from error
    if not isinstance(value, Mapping):
        raise ModelRejected(f"{path}: not a JSON object")
    return cast("Mapping[str, object]", value)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelRejected(f"{path}: {error.strerror}") from error
