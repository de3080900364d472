"""What is no message is told to be none, with the status of a bad request and without a log line."""

from __future__ import annotations

import grpc
import pytest
from headrace_contracts.pb.inference_pb2 import ListModelsRequest
from support.rpc import failure_of, served

NO_FORMAT, NO_TEXT = b"\xff\xff\xff", b"\x0a\x03\xff\xfe\xfd"


@pytest.mark.parametrize(
    ("method", "data"),
    [
        *((method, NO_FORMAT) for method in ("Generate", "Resume", "Cancel", "ListModels")),
        *((method, NO_TEXT) for method in ("Generate", "Resume", "Cancel")),
    ],
)
async def test_a_message_that_cannot_be_decoded_is_the_callers_fault(
    method: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as it:
        path = f"/headrace.v1.Inference/{method}"
        if method in ("Generate", "Resume"):
            call = it.channel.unary_stream(path)(data, metadata=it.metadata)
            failed = await failure_of(call)
        else:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await it.channel.unary_unary(path)(data, metadata=it.metadata)
            failed = caught.value
        assert failed.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failed.details() == "The message cannot be decoded."
        count = "headrace_gateway_grpc_requests_total"
        assert it.gateway.value(count, method=method, status="INVALID_ARGUMENT") == 1
        # what can be decoded goes on as ever
        assert (await it.inference.ListModels(ListModelsRequest(), metadata=it.metadata)).models
    assert not [each for each in caplog.records if each.name.startswith("grpc")]
