"""The table of codes covers the proto, and every code becomes something at every edge."""

from __future__ import annotations

import grpc
import pytest
from headrace_contracts.codes import STATUS, Code, FinishReason
from headrace_contracts.pb import codes_pb2


def test_every_code_of_the_proto_is_a_member_under_its_own_name() -> None:
    in_proto = {
        name.removeprefix("CODE_"): number
        for name, number in codes_pb2.Code.items()
        if number != codes_pb2.CODE_UNSPECIFIED
    }
    assert {code.name: code.value for code in Code} == in_proto


def test_every_finish_reason_of_the_proto_is_a_member_under_its_own_name() -> None:
    in_proto = {
        name.removeprefix("FINISH_REASON_"): number
        for name, number in codes_pb2.FinishReason.items()
        if number != codes_pb2.FINISH_REASON_UNSPECIFIED
    }
    assert {reason.name: reason.value for reason in FinishReason} == in_proto


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
def test_every_code_has_statuses_that_exist(code: Code) -> None:
    status = STATUS[code]
    assert status.grpc in grpc.StatusCode.__members__
    assert status.grpc != "OK"
    assert 400 <= status.http <= 599
    assert status.openai_type


def test_wire_name_is_lower_case_without_the_prefix() -> None:
    assert Code.CONTEXT_LENGTH_EXCEEDED.wire_name == "context_length_exceeded"
    assert len({code.wire_name for code in Code}) == len(Code)


def test_only_codes_of_our_own_fault_and_of_waiting_are_server_errors() -> None:
    for code in Code:
        ours_or_later = code.value >= Code.INTERNAL.value or code in (
            Code.NO_ENGINE,
            Code.DRAINING,
            Code.BACKEND_UNAVAILABLE,
        )
        assert (STATUS[code].http >= 500) == ours_or_later, code.name
