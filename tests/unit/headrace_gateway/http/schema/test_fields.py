"""Fields that both routes share."""

from __future__ import annotations

import pytest
from headrace_gateway.http.errors import HttpError
from headrace_gateway.http.schema.fields import (
    GenerationFields,
    fields_of,
    logit_bias_of,
    stops_of,
)


@pytest.mark.parametrize(
    ("given", "stops"), [(None, ()), ("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))]
)
def test_stops_come_as_one_or_many(given: object, stops: tuple[str, ...]) -> None:
    assert stops_of(given) == stops


@pytest.mark.parametrize("given", [5, True, "", [""], ["a", ""], [7], {"a": 1}])
def test_odd_stops_are_refused(given: object) -> None:
    with pytest.raises(HttpError) as refusal:
        stops_of(given)
    assert refusal.value.param == "stop"


def test_biases_are_read_by_token() -> None:
    assert logit_bias_of({"0": 1, "49152": -2.5, "-3": 5}) == {0: 1.0, 49152: -2.5, -3: 5.0}
    assert logit_bias_of(None) is None


@pytest.mark.parametrize("name", ["abc", "", " 1", "01", "1_0", "+1", "1.0", "٣", "9" * 30])
def test_what_is_no_token_id_is_refused(name: str) -> None:
    with pytest.raises(HttpError):
        logit_bias_of({name: 1})


@pytest.mark.parametrize("bias", [True, "1", None, [1], 10**400])
def test_what_is_no_bias_is_refused(bias: object) -> None:
    with pytest.raises(HttpError):
        logit_bias_of({"1": bias})


def test_the_first_fault_is_named_without_the_framework_s_words() -> None:
    with pytest.raises(HttpError) as refusal:
        fields_of(GenerationFields, {"model": "m", "n": "one"})
    assert refusal.value.param == "n"
    assert "pydantic" not in refusal.value.message
    with pytest.raises(HttpError, match="model is required"):
        fields_of(GenerationFields, {})
