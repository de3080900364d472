"""Logs are one event a line, ours and the libraries' alike."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from headrace_kit.log import configure_logging, get_logger
from pydantic import SecretStr


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    root = logging.getLogger()
    handlers, level, before = list(root.handlers), root.level, structlog.get_config()
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_event_is_one_line_of_json_with_fields_and_service() -> None:
    stream = io.StringIO()
    configure_logging(service="gateway", stream=stream)
    get_logger("part").info("request.finished", id="r1", tokens=3, text="zwei\nZeilen ü")
    (line,) = lines(stream)
    assert line["event"] == "request.finished"
    assert (line["service"], line["level"], line["module"]) == ("gateway", "info", "part")
    assert (line["id"], line["tokens"], line["text"]) == ("r1", 3, "zwei\nZeilen ü")
    assert line["ts"].endswith("Z")


def test_logger_made_before_configuration_obeys_it() -> None:
    log = get_logger("early")
    stream = io.StringIO()
    configure_logging(service="gateway", level="warning", stream=stream)
    log.info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_library_lines_take_the_same_form() -> None:
    stream = io.StringIO()
    configure_logging(service="gateway", stream=stream)
    logging.getLogger("some.library").warning("took %s ms", 5)
    logging.getLogger("some.library").debug("quiet")
    (line,) = lines(stream)
    assert (line["event"], line["module"], line["service"]) == (
        "took 5 ms",
        "some.library",
        "gateway",
    )


def test_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    configure_logging(service="gateway", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger().exception("request.failed")
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "ValueError: broken" in line["exception"]


def test_secret_in_a_field_stays_masked() -> None:
    stream = io.StringIO()
    configure_logging(service="gateway", stream=stream)
    get_logger().info("x", key=SecretStr("hush"))
    assert "hush" not in stream.getvalue()


def test_console_form_is_for_the_eye() -> None:
    stream = io.StringIO()
    configure_logging(service="gateway", format="console", stream=stream)
    get_logger().info("request.finished", tokens=3)
    assert "request.finished" in stream.getvalue()
    assert "tokens=3" in stream.getvalue()


def test_console_form_of_an_exception_shows_no_local_variables() -> None:
    stream = io.StringIO()
    configure_logging(service="gateway", format="console", stream=stream)
    try:
        prompt = "".join(["hu", "sh"])
        raise ValueError(len(prompt))
    except ValueError:
        get_logger().exception("request.failed")
    assert "ValueError: 4" in stream.getvalue()
    assert "hush" not in stream.getvalue()


def test_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging(service="a", stream=first)
    configure_logging(service="b", stream=second)
    logging.getLogger("x").warning("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1
