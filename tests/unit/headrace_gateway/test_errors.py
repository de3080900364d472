"""Every error has its code, a message fit for callers, and statuses from the table."""

from __future__ import annotations

import inspect

import pytest
from headrace_contracts.codes import STATUS
from headrace_gateway import errors
from headrace_transport.errors import QueueFull, TransportUnavailable


def tree(root: type[errors.GatewayError]) -> list[type[errors.GatewayError]]:
    """The classes below one."""
    return [cls for child in root.__subclasses__() for cls in (child, *tree(child))]


def test_every_leaf_has_a_code_with_a_status() -> None:
    branches = set(errors.GatewayError.__subclasses__())
    for leaf in tree(errors.GatewayError):
        if leaf in branches or leaf.__module__ != errors.__name__:
            continue
        assert leaf.code in STATUS
        assert 400 <= STATUS[leaf.code].http < 600


def test_every_refusal_to_come_back_from_is_a_429_or_503() -> None:
    for leaf in tree(errors.ComeBackLater):
        assert STATUS[leaf.code].http in (429, 503)


def test_messages_quote_at_most_a_hundred_characters_of_the_callers() -> None:
    for error in (errors.ModelNotFound("m" * 9999, known=2), errors.RequestNotFound("r" * 9999)):
        assert len(error.message) < 300


def test_context_errors_carry_both_numbers_and_the_field_at_fault() -> None:
    error = errors.ContextLengthExceeded(
        prompt_tokens=100, output_tokens=29, limit_tokens=128, param="messages"
    )
    assert all(number in error.message for number in ("100", "29", "128", "129"))
    assert error.param == "messages"


def test_an_unreachable_server_becomes_a_503_that_says_when() -> None:
    with pytest.raises(errors.BackendUnavailable) as caught, errors.transport_errors():
        raise TransportUnavailable("redis://secret-host:6379 refused")
    assert "secret-host" not in caught.value.message
    assert caught.value.retry_after_s
    assert STATUS[caught.value.code].http == 503


def test_what_the_service_must_word_itself_passes() -> None:
    with pytest.raises(QueueFull), errors.transport_errors():
        raise QueueFull(depth=3, limit=2)


def test_codes_are_used_once() -> None:
    leaves = [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.GatewayError) and "code" in vars(cls)
    ]
    codes = [cls.code for cls in leaves if cls is not errors.GatewayError]
    assert len(codes) == len(set(codes))
