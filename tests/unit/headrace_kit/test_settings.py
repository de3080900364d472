"""Settings come from flags, environment, file and defaults, in that order, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import structlog
from headrace_kit.errors import SettingsError
from headrace_kit.settings import (
    Secrets,
    Settings,
    load,
    load_report,
    load_secrets,
    setting,
    without_credentials,
)
from pydantic import SecretStr, ValidationError


class DemoSettings(Settings, env_prefix="HEADRACE_ENGINE_"):
    """A service's settings."""

    max_batch: int = setting(64, ge=1, le=4096, unit="sequences")
    """Sequences that may be resident at once."""
    port: int = setting(8000, ge=0, le=65535)
    """Port."""
    metrics_port: int = setting(9100, ge=0, le=65535)
    """Another port."""
    prefix_cache: bool = setting(True)
    """Whether blocks are shared."""
    dtype: Literal["float32", "bfloat16"] = setting("float32")
    """Number format."""
    origins: tuple[str, ...] = setting(())
    """Origins."""
    weights: dict[str, float] = setting({})
    """Weights by tenant."""
    redis_url: str = setting("redis://127.0.0.1:6379/0", pattern=r"^rediss?://")
    """Server."""
    ready_file: str | None = setting(None)
    """File."""
    ratio: float = setting(0.5, gt=0, lt=1)
    """Ratio."""


class DemoSecrets(Secrets, env_prefix="HEADRACE_ENGINE_"):
    """Its secrets."""

    redis_password: SecretStr | None = None
    """Password."""


def loaded(**environ: str) -> DemoSettings:
    return load(DemoSettings, environ={f"HEADRACE_ENGINE_{k}": v for k, v in environ.items()})


def refusal(**environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(**environ)
    return str(caught.value)


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "headrace.yaml"
    path.write_text(text)
    return path


class TestPrecedence:
    def test_default_stands_when_nothing_is_given(self) -> None:
        assert load(DemoSettings, environ={}) == DemoSettings()

    def test_flag_beats_environment_beats_file_beats_default(self, tmp_path: Path) -> None:
        path = settings_file(tmp_path, "engine: {max_batch: 1, port: 1, metrics_port: 1}")
        found = load(
            DemoSettings,
            cli={"max_batch": 3},
            file=path,
            environ={"HEADRACE_ENGINE_MAX_BATCH": "2", "HEADRACE_ENGINE_PORT": "2"},
        )
        assert (found.max_batch, found.port, found.metrics_port, found.dtype) == (
            3,
            2,
            1,
            "float32",
        )

    def test_file_is_named_by_the_environment(self, tmp_path: Path) -> None:
        path = settings_file(tmp_path, "engine:\n  max_batch: 7\n")
        assert load(DemoSettings, environ={"HEADRACE_CONFIG_FILE": str(path)}).max_batch == 7

    def test_flag_that_was_not_given_changes_nothing(self) -> None:
        assert load(DemoSettings, cli={"max_batch": None}, environ={}).max_batch == 64

    def test_building_the_class_directly_reads_no_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HEADRACE_ENGINE_MAX_BATCH", "5")
        assert DemoSettings().max_batch == 64
        assert load(DemoSettings).max_batch == 5


class TestTrapOneUnknownVariables:
    def test_unknown_variable_with_our_prefix_is_refused_by_name(self) -> None:
        assert "HEADRACE_ENGINE_MAX_BACTH: no such setting" in refusal(MAX_BACTH="8")

    def test_variables_of_other_services_are_not_ours(self) -> None:
        assert load(DemoSettings, environ={"HEADRACE_GATEWAY_NOPE": "1"}) == DemoSettings()

    def test_variables_of_the_secrets_class_are_known(self) -> None:
        assert loaded(REDIS_PASSWORD="x", REDIS_PASSWORD_FILE="y") == DemoSettings()

    def test_unknown_flag_is_refused_by_name(self) -> None:
        with pytest.raises(SettingsError, match="--max-bacth: no such setting"):
            load(DemoSettings, cli={"max_bacth": 1}, environ={})


class TestTrapTwoFiles:
    def test_missing_file_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"absent\.yaml.*No such file"):
            load(DemoSettings, file=tmp_path / "absent.yaml", environ={})

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("engine: {max_bacth: 1}", "engine.max_bacth: no such setting"),
            ("engin: {max_batch: 1}", "no such section 'engin'; there are engine, gateway"),
            ("engine: {max_batch: 1, max_batch: 2}", "the key 'max_batch' stands twice"),
            ("engine: [1]", "engine: expected keys and values, found a list"),
            ("engine: {max_batch: many}", "engine.max_batch: input should be a valid integer"),
            ("engine: {", "not valid YAML"),
            ("just words", "expected keys and values, found a str"),
        ],
    )
    def test_faulty_file_is_refused_with_the_place(
        self, tmp_path: Path, text: str, complaint: str
    ) -> None:
        path = settings_file(tmp_path, text)
        with pytest.raises(SettingsError) as caught:
            load(DemoSettings, file=path, environ={})
        assert complaint in str(caught.value)
        assert str(path) in str(caught.value)

    def test_sections_of_other_services_are_left_to_them(self, tmp_path: Path) -> None:
        path = settings_file(tmp_path, "gateway: {whatever: 1}\nengine:\n")
        assert load(DemoSettings, file=path, environ={}) == DemoSettings()

    def test_file_takes_native_values_and_texts_alike(self, tmp_path: Path) -> None:
        path = settings_file(
            tmp_path,
            "engine:\n  prefix_cache: 'off'\n  origins: a, b\n  weights: {a: 2}\n  port: '81'\n",
        )
        found = load(DemoSettings, file=path, environ={})
        assert found.prefix_cache is False
        assert found.origins == ("a", "b")
        assert found.weights == {"a": 2.0}
        assert found.port == 81


@pytest.mark.case("BR-39")
class TestTrapThreeServiceLinks:
    LINKS = (
        ("PORT", "tcp://10.0.0.9:8000"),
        ("METRICS_PORT", "tcp://10.0.0.9:9100"),
        ("SERVICE_HOST", "10.0.0.9"),
        ("SERVICE_PORT", "8000"),
        ("SERVICE_PORT_HTTP", "8000"),
        ("PORT_8000_TCP", "tcp://10.0.0.9:8000"),
        ("PORT_8000_TCP_ADDR", "10.0.0.9"),
        ("PORT_8000_TCP_PORT", "8000"),
        ("PORT_8000_TCP_PROTO", "tcp"),
        ("METRICS_SERVICE_HOST", "10.0.0.9"),
        ("METRICS_PORT_9100_TCP_ADDR", "10.0.0.9"),
    )

    def test_what_kubernetes_injects_is_ignored_and_reported(self) -> None:
        environ = {f"HEADRACE_ENGINE_{name}": value for name, value in self.LINKS}
        report = load_report(DemoSettings, environ=environ)
        assert report.settings == DemoSettings()
        assert sorted(report.ignored) == sorted(environ)

    def test_plain_load_warns_of_them(self, caplog: pytest.LogCaptureFixture) -> None:
        loaded(PORT="tcp://10.0.0.9:8000")
        assert "HEADRACE_ENGINE_PORT looks like a Kubernetes service link" in caplog.text

    def test_port_number_in_the_same_variable_still_counts(self) -> None:
        assert loaded(PORT="8123").port == 8123

    @pytest.mark.parametrize("value", ["abc", "70000", "-1", "80 80"])
    def test_bad_port_is_one_line_that_names_the_variable(self, value: str) -> None:
        message = refusal(PORT=value)
        assert message.startswith("HEADRACE_ENGINE_PORT: ")
        assert repr(value) in message
        assert "\n" not in message


class TestTrapFourSecrets:
    def test_secret_in_a_settings_class_is_refused_when_it_is_declared(self) -> None:
        with pytest.raises(TypeError, match=r"password is a secret.*Secrets class"):

            class Careless(Settings, env_prefix="HEADRACE_X_"):  # pyright: ignore[reportUnusedClass]
                password: SecretStr | None = None

    def test_plain_text_in_a_secrets_class_is_refused_when_it_is_declared(self) -> None:
        with pytest.raises(TypeError, match="must be a SecretStr"):

            class Careless(Secrets, env_prefix="HEADRACE_X_"):  # pyright: ignore[reportUnusedClass]
                password: str = ""

    def test_secret_comes_from_its_variable(self) -> None:
        found = load_secrets(DemoSecrets, environ={"HEADRACE_ENGINE_REDIS_PASSWORD": "hush\n"})
        assert found.redis_password is not None
        assert found.redis_password.get_secret_value() == "hush"
        assert "hush" not in repr(found)

    def test_secret_comes_from_a_mounted_file_without_its_line_break(self, tmp_path: Path) -> None:
        mounted = tmp_path / "password"
        mounted.write_text("hush \r\n")
        found = load_secrets(
            DemoSecrets, environ={"HEADRACE_ENGINE_REDIS_PASSWORD_FILE": str(mounted)}
        )
        assert found.redis_password is not None
        assert found.redis_password.get_secret_value() == "hush "

    def test_absent_secret_is_none_and_both_ways_at_once_are_refused(self, tmp_path: Path) -> None:
        assert load_secrets(DemoSecrets, environ={}).redis_password is None
        both = {
            "HEADRACE_ENGINE_REDIS_PASSWORD": "hush",
            "HEADRACE_ENGINE_REDIS_PASSWORD_FILE": "x",
        }
        with pytest.raises(SettingsError, match="use one") as caught:
            load_secrets(DemoSecrets, environ=both)
        assert "hush" not in str(caught.value)

    def test_missing_mounted_file_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"REDIS_PASSWORD_FILE: cannot read .*absent"):
            load_secrets(
                DemoSecrets,
                environ={"HEADRACE_ENGINE_REDIS_PASSWORD_FILE": str(tmp_path / "absent")},
            )

    def test_required_secret_that_is_missing_is_named_by_its_variable(self) -> None:
        class Strict(Secrets, env_prefix="HEADRACE_STRICT_"):
            pepper: SecretStr
            """Pepper."""

        with pytest.raises(SettingsError, match="HEADRACE_STRICT_PEPPER: field required"):
            load_secrets(Strict, environ={})


@pytest.mark.case("BR-40")
class TestSpellings:
    @pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes", "Yes", "on", " on "])
    def test_words_for_true(self, text: str) -> None:
        assert loaded(PREFIX_CACHE=text).prefix_cache is True

    @pytest.mark.parametrize("text", ["false", "False", "FALSE", "0", "no", "No", "off", " off"])
    def test_words_for_false(self, text: str) -> None:
        assert loaded(PREFIX_CACHE=text).prefix_cache is False

    @pytest.mark.parametrize("text", ["", "  "])
    def test_empty_means_not_given(self, text: str, tmp_path: Path) -> None:
        empty = {f"HEADRACE_ENGINE_{name.upper()}": text for name in DemoSettings.model_fields}
        assert load(DemoSettings, environ=empty) == DemoSettings()
        path = settings_file(tmp_path, f"engine: {{max_batch: '{text}', port: null}}")
        assert load(DemoSettings, file=path, environ={}) == DemoSettings()

    def test_number_may_have_space_around_it(self) -> None:
        assert loaded(PORT=" 8000 ").port == 8000

    @pytest.mark.parametrize(
        ("name", "text"),
        [("PREFIX_CACHE", "maybe"), ("PORT", "8k"), ("DTYPE", "int3"), ("RATIO", "1.5")],
    )
    def test_malformed_value_is_one_line_naming_the_variable(self, name: str, text: str) -> None:
        message = refusal(**{name: text})
        assert message.startswith(f"HEADRACE_ENGINE_{name}: ")
        assert "\n" not in message

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("*", ("*",)),
            ("https://a.example", ("https://a.example",)),
            ("https://a.example, https://b.example", ("https://a.example", "https://b.example")),
            ('["https://a.example"]', ("https://a.example",)),
            ('["a,b", "c"]', ("a,b", "c")),
            ("", ()),
            ("[]", ()),
        ],
    )
    def test_lists_are_json_or_separated_by_commas(
        self, text: str, expected: tuple[str, ...]
    ) -> None:
        assert loaded(ORIGINS=text).origins == expected
        assert load(DemoSettings, cli={"origins": text}, environ={}).origins == expected

    def test_broken_list_and_broken_object_are_named(self) -> None:
        assert refusal(ORIGINS="[").startswith("HEADRACE_ENGINE_ORIGINS: expected a JSON list")
        assert refusal(WEIGHTS="a=1").startswith("HEADRACE_ENGINE_WEIGHTS: expected a JSON obj")

    def test_value_of_a_text_setting_is_not_repeated_in_the_error(self) -> None:
        message = refusal(REDIS_URL="http://user:hush@host")
        assert message.startswith("HEADRACE_ENGINE_REDIS_URL: ")
        assert "hush" not in message

    def test_every_problem_is_reported_at_once(self) -> None:
        message = refusal(PORT="x", MAX_BATCH="0", RATIO="2")
        assert len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me@host:1/0", "redis://***@host:1/0"),
        ("no redis://:a@b@host:1 there", "no redis://***@host:1 there"),
        ("redis://:a/b#c?d@host", "redis://***@host"),
        ("redis+sentinel://me@a:1,b:2/main", "redis+sentinel://***@a:1,b:2/main"),
        ("hf://org/name@revision", "hf://org/name@revision"),
        ("http://host:1/path", "http://host:1/path"),
    ],
)
def test_nobody_is_told_a_urls_user_and_password(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


class TestReport:
    def test_every_value_that_differs_is_logged_with_its_source(self, tmp_path: Path) -> None:
        path = settings_file(tmp_path, "engine: {ratio: 0.25, port: 8000}")
        report = load_report(
            DemoSettings,
            cli={"max_batch": "8"},
            file=path,
            environ={"HEADRACE_ENGINE_REDIS_URL": "redis://me:hush@host:1/0"},
        )
        with structlog.testing.capture_logs() as lines:
            report.announce(structlog.get_logger())
        assert [(line["name"], line["value"], line["origin"], line["place"]) for line in lines] == [
            ("max_batch", 8, "flag", "--max-batch"),
            ("redis_url", "redis://***@host:1/0", "environment", "HEADRACE_ENGINE_REDIS_URL"),
            ("ratio", 0.25, "file", f"{path}: engine.ratio"),
        ]

    def test_ignored_service_links_are_logged_as_warnings(self) -> None:
        report = load_report(DemoSettings, environ={"HEADRACE_ENGINE_SERVICE_HOST": "10.0.0.9"})
        with structlog.testing.capture_logs() as lines:
            report.announce(structlog.get_logger())
        assert [(line["log_level"], line["variable"]) for line in lines] == [
            ("warning", "HEADRACE_ENGINE_SERVICE_HOST")
        ]


class TestClass:
    def test_settings_are_frozen(self) -> None:
        with pytest.raises(ValidationError):
            DemoSettings().max_batch = 3  # pyright: ignore[reportAttributeAccessIssue]

    def test_unknown_argument_is_refused(self) -> None:
        with pytest.raises(ValidationError):
            DemoSettings(max_bacth=3)  # pyright: ignore[reportCallIssue]

    def test_default_outside_its_own_bounds_is_refused(self) -> None:
        class Wrong(Settings, env_prefix="HEADRACE_WRONG_"):
            size: int = setting(0, ge=1)
            """Size."""

        with pytest.raises(SettingsError, match="size: input should be greater"):
            load(Wrong, environ={})
