"""What is left of a key's minute, in the headers that OpenAI's clients read."""

from __future__ import annotations

from headrace_gateway.inference.calls import RateState


def rate_headers(rates: RateState | None) -> dict[str, str]:
    """Limit, rest, and time until all of it is back, for what has a limit."""
    headers: dict[str, str] = {}
    if rates is None:
        return headers
    for name, bucket in (("requests", rates.requests), ("tokens", rates.tokens)):
        if bucket is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(bucket.left)
            headers[f"x-ratelimit-reset-{name}"] = f"{round(bucket.full_s, 3):g}s"
    return headers
