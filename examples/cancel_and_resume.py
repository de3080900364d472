"""Cancelling a request by its id, and reading on in a stream from where it was left.

A request whose client leaves is cancelled at once, unless the deployment keeps it for
``resume_grace_s``. What has finished can be read again for a while in any case.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import httpx

client = httpx.Client(
    base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000"),
    headers={"Authorization": "Bearer " + os.environ["HEADRACE_API_KEY"]},
    timeout=60,
)
model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]


def body(max_tokens: int) -> dict[str, object]:
    """A completion that goes on until it is cut."""
    return {
        "model": model,
        "prompt": "Once upon a time",
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Event ids and texts of a stream. An error event ends it with its message."""
    place = ""
    for line in response.iter_lines():
        if line.startswith("id:"):
            place = line.removeprefix("id:").strip()
        elif line.startswith("data:") and not line.endswith("[DONE]"):
            chunk = json.loads(line.removeprefix("data:"))
            if "error" in chunk:
                print(f"\n[the stream ended: {chunk['error']['code']}]")
                return
            for choice in chunk["choices"]:
                yield place, choice["text"]


print("== cancel")
with client.stream("POST", "/v1/completions", json=body(2000)) as stream:
    request = stream.headers["x-headrace-request-id"]
    for seen, (_, text) in enumerate(events(stream)):
        print(text, end="", flush=True)
        if seen == 8:  # from anywhere: another process, another gateway
            answer = client.delete(f"/v1/requests/{request}").raise_for_status()
            print(f"\n[asked to cancel: {answer.json()['cancelled']}]")
while (info := client.get(f"/v1/requests/{request}").json())["status"] != "finished":
    time.sleep(0.05)
print(f"finished as {info['finish_reason']}")

print("== resume")
pieces: list[tuple[str, str]] = []
with client.stream("POST", "/v1/completions", json=body(24)) as stream:
    request = stream.headers["x-headrace-request-id"]
    pieces = list(events(stream))
place = pieces[9][0]
before = "".join(text for _, text in pieces[:10])
print(f"read up to event {place}: {before!r}")
with client.stream("GET", f"/v1/requests/{request}/events", params={"after": place}) as stream:
    after = "".join(text for _, text in events(stream))
print(f"and on from there: {after!r}")
assert before + after == "".join(text for _, text in pieces)
