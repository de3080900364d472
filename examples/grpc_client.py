"""The gRPC API: list the models, stream an answer, and give one up at a deadline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol, cast

import grpc
from headrace_contracts.pb import inference_pb2 as pb
from headrace_contracts.pb import inference_pb2_grpc


class Inference(Protocol):
    """The calls of ``proto/headrace/v1/inference.proto``; the generated stub has no types."""

    def ListModels(
        self, request: pb.ListModelsRequest, *, metadata: object
    ) -> pb.ListModelsResponse: ...

    def Generate(
        self, request: pb.GenerateRequest, *, metadata: object, timeout: float
    ) -> Iterator[pb.GenerateEvent]: ...


address = os.environ.get("HEADRACE_GRPC", "127.0.0.1:9000")
metadata = (("authorization", "Bearer " + os.environ["HEADRACE_API_KEY"]),)

with grpc.insecure_channel(address) as channel:
    stub = cast("Inference", inference_pb2_grpc.InferenceStub(channel))
    model = stub.ListModels(pb.ListModelsRequest(), metadata=metadata).models[0].id

    print("== a stream")
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="Name three rivers.")])
    request = pb.GenerateRequest(model=model, chat=chat, max_tokens=32, temperature=0)
    for event in stub.Generate(request, metadata=metadata, timeout=60):
        print(event.text, end="", flush=True)
        if event.HasField("usage"):
            print(f"\n{event.usage.completion_tokens} tokens")

    print("== a deadline")
    request.max_tokens = 4000
    request.ignore_eos = True
    try:
        for event in stub.Generate(request, metadata=metadata, timeout=1):
            print(event.text, end="", flush=True)
    except grpc.RpcError as error:
        # The engine stops too: nothing goes on generating for nobody.
        print(f"\n{cast('grpc.Call', error).code().name}")
