"""Headrace with the official OpenAI SDK: an answer, a stream, logprobs, and an error."""

from __future__ import annotations

import os

import openai
from openai.types.chat import ChatCompletionMessageParam

client = openai.OpenAI(
    base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ["HEADRACE_API_KEY"],
)
model = client.models.list().data[0].id
messages: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "What is a headrace?"},
]

print("== one answer")
answer = client.chat.completions.create(
    model=model, messages=messages, max_tokens=40, temperature=0, seed=1
)
print(answer.choices[0].message.content)
print("usage:", answer.usage and answer.usage.total_tokens, "tokens")

print("== a stream")
for chunk in client.chat.completions.create(
    model=model, messages=messages, max_tokens=40, temperature=0, stream=True
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

print("== what else the first token might have been")
likely = client.chat.completions.create(
    model=model, messages=messages, max_tokens=1, logprobs=True, top_logprobs=3
)
logprobs = likely.choices[0].logprobs
assert logprobs is not None
for candidate in (logprobs.content or [])[0].top_logprobs:
    print(f"{candidate.token!r:12} {candidate.logprob:8.3f}")

print("== a refusal")
try:
    client.chat.completions.create(model=model, messages=messages, max_tokens=1_000_000)
except openai.BadRequestError as error:
    print(error.code, error.message, sep=": ")
