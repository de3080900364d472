"""Documents out of declarations: tables, an environment example, and a JSON schema."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from headrace_kit.metrics import Declaration
from headrace_kit.settings import Secrets, Settings, flag_of, variable_of


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting as documents show it."""

    name: str
    type: str
    """In words, without None."""
    optional: bool
    """May be left empty, as None."""
    default: object
    required: bool
    bounds: str
    unit: str
    variable: str
    flag: str
    meaning: str
    """Its docstring on one line."""

    @property
    def is_switch(self) -> bool:
        """True or false."""
        return self.type == "true or false"

    @property
    def default_text(self) -> str:
        """The default as a person would type it."""
        return "required" if self.required else plain(self.default)


def describe(cls: type[Settings]) -> list[SettingInfo]:
    """Every setting of ``cls`` in order of declaration."""
    described: list[SettingInfo] = []
    for name, info in cls.model_fields.items():
        extra = cast(dict[str, Any], info.json_schema_extra or {})
        described.append(
            SettingInfo(
                name=name,
                type=_type_text(info.annotation),
                optional=type(None) in get_args(info.annotation),
                default=info.default,
                required=info.is_required(),
                bounds=_bounds(info),
                unit=str(extra.get("unit", "")),
                variable=variable_of(cls, name),
                flag=flag_of(name),
                meaning=" ".join((info.description or "").split()),
            )
        )
    return described


def settings_markdown(cls: type[Settings], secrets: type[Secrets]) -> str:
    """A table of the settings, and one of the secrets' variables."""
    lines = [
        f"| `{cls.section}.` | Default | Unit | Values | Variable, flag | Meaning |",
        "|---|---|---|---|---|---|",
    ]
    for info in describe(cls):
        empty = "or nothing" if info.optional else ""
        values = ", ".join(part for part in (info.type, info.bounds, empty) if part)
        lines.append(
            _row(
                f"`{info.name}`",
                f"`{info.default_text}`" if info.default_text else "empty",
                info.unit,
                values,
                f"`{info.variable}` `{info.flag}`",
                info.meaning,
            )
        )
    lines += ["", "| Secret | Or a file named by | Meaning |", "|---|---|---|"]
    for name, field in secrets.model_fields.items():
        variable = variable_of(secrets, name)
        meaning = " ".join((field.description or "").split())
        lines.append(_row(f"`{variable}`", f"`{variable}_FILE`", meaning))
    return "\n".join(lines) + "\n"


def env_example(cls: type[Settings], secrets: type[Secrets]) -> str:
    """Every variable, commented out, with its default and meaning."""
    lines: list[str] = []
    for info in describe(cls):
        unit = f" ({info.unit})" if info.unit else ""
        value = "" if info.required or info.default is None else plain(info.default)
        lines += [f"# {info.meaning}{unit}", f"#{info.variable}={value}"]
    for name, field in secrets.model_fields.items():
        meaning = " ".join((field.description or "").split())
        lines += [f"# Secret. {meaning}", f"#{variable_of(secrets, name)}_FILE="]
    return "\n".join(lines) + "\n"


def json_schema(cls: type[Settings]) -> str:
    """JSON schema of the class's section of the settings file, for editors and the chart."""
    schema = cls.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, ensure_ascii=False, default=str) + "\n"


def metrics_markdown(declared: Iterable[Declaration]) -> str:
    """A table of metrics."""
    lines = ["| Metric | Kind | Unit | Labels | Meaning |", "|---|---|---|---|---|"]
    for made in declared:
        labels = ", ".join(f"`{label}`" for label in made.labels)
        lines.append(_row(f"`{made.name}`", made.kind, made.unit or "", labels, made.help))
    return "\n".join(lines) + "\n"


def plain(value: object) -> str:
    """A default as it is typed into a variable; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(plain(item) for item in cast(Iterable[object], value))
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type_text(annotation: Any) -> str:
    """What a person may write, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(part) for part in arguments if part is not type(None))
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in arguments)
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type_text(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return "path"
    names: dict[object, str] = {
        bool: "true or false",
        int: "integer",
        float: "number",
        str: "text",
    }
    return names.get(cast(object, annotation), "JSON object")


def _bounds(info: FieldInfo) -> str:
    """The constraints of a field, e.g. ``≥ 1, ≤ 4096``."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found: list[str] = []
    for constraint in info.metadata:
        for name, sign in signs.items():
            bound = getattr(constraint, name, None)
            if bound is not None:
                found.append(f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound}")
    return ", ".join(found)
