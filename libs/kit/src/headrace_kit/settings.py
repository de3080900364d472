"""Settings, declared once: flag over environment over file over default. Reads ``os.environ``.

A service declares one ``Settings`` class and, beside it, one ``Secrets`` class with the same
prefix. ``headrace_kit.describe`` makes documents and schemas of them, ``headrace_kit.flags``
command-line flags.
"""

from __future__ import annotations

import json
import logging
import os
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from headrace_kit.errors import SettingsError

CONFIG_FILE_VARIABLE = "HEADRACE_CONFIG_FILE"
FILE_SECTIONS = frozenset({"engine", "gateway"})
"""Top-level keys of the file. One file may serve every service; a typo must not be skipped."""

Origin = Literal["flag", "environment", "file", "default"]

# What Kubernetes injects for a Service whose name begins like our prefix.
_SERVICE_LINK = re.compile(
    r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)
_LINK_URI = re.compile(r"(?:tcp|udp|sctp)://", re.IGNORECASE)

T = TypeVar("T")


def setting(
    default: T,
    *,
    unit: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
) -> T:
    """Declares one setting; its docstring stands below it.

    ``unit`` is what one of it is ("tokens", "s", "bytes"). The rest are bounds.
    """
    return Field(
        default=default,
        ge=ge,
        gt=gt,
        le=le,
        lt=lt,
        min_length=min_length,
        max_length=max_length,
        pattern=pattern,
        json_schema_extra=None if unit is None else {"unit": unit},
    )


class Settings(BaseModel):
    """Base of a service's settings: frozen, no unknown field, no secret.

    Subclass as ``class EngineSettings(Settings, env_prefix="HEADRACE_ENGINE_")``. Building one
    directly reads nothing but its arguments; ``load`` is what looks at the process's world.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True
    )

    env_prefix: ClassVar[str] = ""
    section: ClassVar[str] = ""
    """Key of this class's part of the file: ``engine`` for ``HEADRACE_ENGINE_``."""

    def __init_subclass__(cls, *, env_prefix: str | None = None) -> None:
        super().__init_subclass__()
        if env_prefix is not None:
            cls.env_prefix = env_prefix
            cls.section = env_prefix.removeprefix("HEADRACE_").rstrip("_").lower()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, info in cls.model_fields.items():
            if SecretStr in _members(info.annotation):
                raise TypeError(
                    f"{cls.__name__}.{name} is a secret: it would become a flag and a chart "
                    "value. Declare it in a Secrets class"
                )


class Secrets(BaseModel):
    """Base of a service's secrets: read from the environment or from mounted files only."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    env_prefix: ClassVar[str] = ""

    def __init_subclass__(cls, *, env_prefix: str | None = None) -> None:
        super().__init_subclass__()
        if env_prefix is not None:
            cls.env_prefix = env_prefix

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, info in cls.model_fields.items():
            if SecretStr not in _members(info.annotation):
                raise TypeError(f"{cls.__name__}.{name} must be a SecretStr, or optional one")


S = TypeVar("S", bound=Settings)
X = TypeVar("X", bound=Secrets)


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs from its default."""

    name: str
    value: object
    origin: Origin
    place: str
    """Flag, variable, or file and key."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings with the story of where they came from."""

    settings: S
    changes: tuple[Change, ...]
    ignored: tuple[str, ...] = field(default=())
    """Environment variables that Kubernetes injected for a Service; they are not settings."""

    def announce(self, log: structlog.typing.FilteringBoundLogger) -> None:
        """Logs every value that differs from its default, with its source, and what is ignored."""
        for change in self.changes:
            log.info(
                "setting.changed",
                name=change.name,
                value=_without_credentials(change.value),
                origin=change.origin,
                place=change.place,
            )
        for variable in self.ignored:
            log.warning(
                "setting.service_link_ignored",
                variable=variable,
                hint="set enableServiceLinks: false in the pod",
            )


def load(
    cls: type[S],
    cli: Mapping[str, object] | None = None,
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> S:
    """The settings of ``cls``; see ``load_report``. What is ignored goes to ``logging``."""
    loaded = load_report(cls, cli=cli, file=file, environ=environ)
    for variable in loaded.ignored:
        logging.getLogger(__name__).warning(
            "%s looks like a Kubernetes service link, not a setting; ignored", variable
        )
    return loaded.settings


def load_report(
    cls: type[S],
    cli: Mapping[str, object] | None = None,
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded[S]:
    """Reads flags, environment and file, in this order of precedence, and checks the result.

    ``cli`` holds given flags by field name (None means not given). ``file`` overrides
    ``$HEADRACE_CONFIG_FILE``. An empty string anywhere means "not given". Raises
    ``SettingsError`` that names every unknown, malformed or out-of-bounds value by its place.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values: dict[str, object] = {}
    places: dict[str, tuple[Origin, str]] = {}

    def take(name: str, raw: object, origin: Origin, place: str) -> None:
        if raw is None or (isinstance(raw, str) and not raw.strip()):
            return
        try:
            values[name] = _decode(cls.model_fields[name].annotation, raw)
        except ValueError as error:
            problems.append(f"{place}: {error}")
        places[name] = (origin, place)

    path = Path(file) if file is not None else _file_of(environ)
    for name, raw in _read_section(path, cls, problems).items():
        take(name, raw, "file", f"{path}: {cls.section}.{name}")
    ours, ignored = _read_environment(environ, cls, problems)
    for name, raw in ours.items():
        take(name, raw, "environment", variable_of(cls, name))
    for name, raw in (cli or {}).items():
        if name not in cls.model_fields:
            problems.append(f"{flag_of(name)}: no such setting")
        else:
            take(name, raw, "flag", flag_of(name))
    if problems:
        raise SettingsError(problems)
    settings = _validate(cls, values, {name: place for name, (_, place) in places.items()})
    return Loaded(settings, _changes(settings, places), tuple(ignored))


def load_secrets(cls: type[X], environ: Mapping[str, str] | None = None) -> X:
    """Reads each secret from its variable, or from the file that ``<variable>_FILE`` names.

    Trailing line breaks are stripped. Raises ``SettingsError``; no secret is in the message.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values: dict[str, SecretStr] = {}
    places: dict[str, str] = {}
    for name in cls.model_fields:
        variable = variable_of(cls, name)
        places[name] = variable
        direct, mounted = environ.get(variable), environ.get(f"{variable}_FILE")
        if direct and mounted:
            problems.append(f"{variable} and {variable}_FILE are both set; use one")
        elif direct:
            values[name] = SecretStr(direct.rstrip("\r\n"))
        elif mounted:
            try:
                values[name] = SecretStr(Path(mounted).read_text("utf-8").rstrip("\r\n"))
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"{variable}_FILE: cannot read {mounted}: {_reason(error)}")
    if problems:
        raise SettingsError(problems)
    return _validate(cls, values, places)


def variable_of(cls: type[Settings] | type[Secrets], name: str) -> str:
    """Environment variable of a field."""
    return f"{cls.env_prefix}{name.upper()}"


def flag_of(name: str) -> str:
    """Command-line flag of a field."""
    return f"--{name.replace('_', '-')}"


M = TypeVar("M", bound=BaseModel)


def _validate(cls: type[M], values: Mapping[str, object], places: Mapping[str, str]) -> M:
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        problems: list[str] = []
        for found in error.errors(include_url=False, include_context=False):
            where = str(found["loc"][0]) if found["loc"] else ""
            place = places.get(where, where or cls.__name__)
            shown = f" (got {found['input']!r})" if _may_be_shown(cls, where, found) else ""
            message = found["msg"].removeprefix("Value error, ")  # of a check of ours
            problems.append(f"{place}: {message[:1].lower()}{message[1:]}{shown}")
        raise SettingsError(problems) from None


def _may_be_shown(cls: type[BaseModel], name: str, found: Mapping[str, Any]) -> bool:
    """Numbers, switches and choices hold no secret; a text could (a URL with a password)."""
    info = cls.model_fields.get(name)
    return info is not None and found["type"] != "missing" and str not in _members(info.annotation)


def _changes(settings: Settings, places: Mapping[str, tuple[Origin, str]]) -> tuple[Change, ...]:
    changes: list[Change] = []
    for name, info in type(settings).model_fields.items():
        value: object = settings.__dict__[name]
        if name in places and value != info.get_default(call_default_factory=True):
            origin, place = places[name]
            changes.append(Change(name, value, origin, place))
    return tuple(changes)


def _read_environment(
    environ: Mapping[str, str], cls: type[Settings], problems: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Our variables by field name, and the service links among them. Unknown ones are problems."""
    known = {variable_of(cls, name): name for name in cls.model_fields}
    secret = _secret_variables(cls.env_prefix)
    ours: dict[str, str] = {}
    links: list[str] = []
    for variable, raw in environ.items():
        if not variable.startswith(cls.env_prefix) or variable in secret:
            continue
        rest = variable[len(cls.env_prefix) :]
        if rest.endswith("PORT") and _LINK_URI.match(raw):
            links.append(variable)
        elif variable in known:
            ours[known[variable]] = raw
        elif _SERVICE_LINK.fullmatch(rest):
            links.append(variable)
        else:
            problems.append(f"{variable}: no such setting")
    return ours, links


def _secret_variables(prefix: str) -> set[str]:
    """Variables of the secrets declared beside a settings class: they share its prefix."""
    names: set[str] = set()
    for cls in Secrets.__subclasses__():
        if cls.env_prefix == prefix:
            for name in cls.model_fields:
                names |= {variable_of(cls, name), f"{variable_of(cls, name)}_FILE"}
    return names


def _file_of(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(CONFIG_FILE_VARIABLE, "").strip()
    return Path(named) if named else None


def _read_section(path: Path | None, cls: type[Settings], problems: list[str]) -> dict[str, object]:
    """The class's part of the file. A missing file, section typo or unknown key is a problem."""
    if path is None:
        return {}
    try:
        tree: object = yaml.load(path.read_text("utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot read the settings file: {_reason(error)}")
        return {}
    except yaml.YAMLError as error:
        problems.append(f"{path}: not valid YAML: {' '.join(str(error).split())}")
        return {}
    sections = _mapping(tree, f"{path}", problems)
    for name in sections:
        if name not in FILE_SECTIONS | {cls.section}:
            known = ", ".join(sorted(FILE_SECTIONS | {cls.section}))
            problems.append(f"{path}: no such section {name!r}; there are {known}")
    section = _mapping(sections.get(cls.section), f"{path}: {cls.section}", problems)
    for name in [name for name in section if name not in cls.model_fields]:
        problems.append(f"{path}: {cls.section}.{name}: no such setting")
        del section[name]
    return section


def _mapping(tree: object, place: str, problems: list[str]) -> dict[str, object]:
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        problems.append(f"{place}: expected keys and values, found a {type(tree).__name__}")
        return {}
    return {str(key): value for key, value in cast(dict[object, object], tree).items()}


class _StrictLoader(yaml.SafeLoader):
    """YAML without silent overwriting: the same key twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _decode(annotation: Any, raw: object) -> object:
    """A text as its field wants it: trimmed; lists from JSON or commas; mappings from JSON."""
    if not isinstance(raw, str):
        return raw
    text = raw.strip()
    shapes = {get_origin(member) or member for member in _members(annotation)}
    if shapes & {list, tuple, set, frozenset}:
        if not text.startswith("["):
            return [part.strip() for part in text.split(",") if part.strip()]
        return _from_json(text, "a JSON list, or values separated by commas")
    if dict in shapes:
        return _from_json(text, "a JSON object")
    return text


def _from_json(text: str, expected: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None


def _members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union; anything else alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def without_credentials(text: str) -> str:
    """A URL's user and password are not for logs and messages; one may hold what belongs in none."""
    return re.sub(r"(\w+://)(?:[^/@\s:]*:\S*|[^/@\s]*)@", r"\1***@", text)


def _without_credentials(value: object) -> object:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_credentials(item) for item in cast("list[object]", value)]
    return value


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8"
