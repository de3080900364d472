"""What an operator can set about the gateway: declared here, once."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from headrace_kit.log import Format, Level
from headrace_kit.settings import Secrets, Settings, setting
from pydantic import AfterValidator, SecretStr, WithJsonSchema

_ORIGIN: Final = (
    r"^(null|\*|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?)$"
)
_USUAL_PORT: Final = r"^(http://[^/]*:80|https://[^/]*:443)$"


def _origin(value: str) -> str:
    if not re.match(_ORIGIN, value) or re.match(_USUAL_PORT, value) or value.endswith("\n"):
        raise ValueError(
            f"no browser sends the origin {value!r}: it is scheme and host in small letters, "
            "a port where it is not the usual one, and nothing more, as in "
            "https://ui.example:8443"
        )
    return value


Origin: TypeAlias = Annotated[
    str,
    AfterValidator(_origin),
    WithJsonSchema({"type": "string", "pattern": _ORIGIN, "not": {"pattern": _USUAL_PORT}}),
]
"""As browsers write it: a port only where it is not the scheme's own. Helm's patterns look neither
ahead nor back, so two say it.
"""


class GatewaySettings(Settings, env_prefix="HEADRACE_GATEWAY_"):
    """Settings of one gateway process."""

    # where it listens
    http_host: str = setting("127.0.0.1")
    """Address the HTTP API listens on. The chart and the images set 0.0.0.0."""
    http_port: int = setting(8000, ge=0, le=65535)
    """Port of the HTTP API; 0 takes a free one."""
    grpc_host: str = setting("127.0.0.1")
    """Address the gRPC API listens on."""
    grpc_port: int = setting(9000, ge=0, le=65535)
    """Port of the gRPC API; 0 takes a free one."""
    tls_cert_file: str | None = setting(None)
    """Certificate, with those of its authorities, for TLS on both APIs. Read again when it changes;
    without one both are plain."""
    tls_key_file: str | None = setting(None)
    """The key of `tls_cert_file`."""
    ready_file: str | None = setting(None)
    """File that gets the ports and the process id, as JSON, once requests can be served."""

    # the server behind it
    redis_url: str = setting("redis://127.0.0.1:6379/0")
    """URL of the Redis or Valkey server, without the password. Over TLS `rediss://…`; found through
    sentinels `redis+sentinel://host:port,host:port/service/db`."""
    redis_ca_file: str | None = setting(None)
    """Authority that signed the server's certificate, for `rediss://`; the system's when absent."""
    redis_cert_file: str | None = setting(None)
    """A certificate of ours, for a server that asks for one."""
    redis_key_file: str | None = setting(None)
    """The key of `redis_cert_file`."""
    name: str = setting("gateway", min_length=1, max_length=63, pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """Name of this process in logs and leases; a nonce is added at each start."""
    lease_s: float = setting(15.0, gt=0.1, le=300, unit="seconds")
    """How long this process counts as alive after its last beat. Its requests are cancelled, or
    kept for a resume, when it is over."""

    # HTTP
    max_body_bytes: int = setting(10 * 1024 * 1024, ge=1024, le=1024**3, unit="bytes")
    """Largest request body."""
    body_timeout_s: float = setting(30.0, gt=0, le=3600, unit="seconds")
    """Longest time a client may take to send its body."""
    cors_origins: tuple[Origin, ...] = setting(())
    """Origins whose pages may call the API, as browsers write them, `https://ui.example:8443`; `*`:
    any; empty: none."""
    metrics_need_key: bool = setting(False)
    """Whether /metrics asks for a key. It carries no prompt and no key either way."""
    strict_fields: bool = setting(False)
    """Whether an unknown request field is refused; otherwise a header names it."""
    keepalive_s: float = setting(10.0, gt=0.05, le=600, unit="seconds")
    """Silence on a stream after which a comment is sent."""

    # admission
    max_queued: int = setting(1024, ge=1, le=1_000_000, unit="requests")
    """Requests of one model that may wait for an engine; more are refused with 429."""
    max_open_requests: int = setting(4096, ge=1, le=1_000_000, unit="requests")
    """Requests this process holds open at once; more are refused with 429."""
    max_tokens_per_call: int | None = setting(None, ge=1, unit="tokens")
    """Most output tokens one choice may ask for, below what the context allows."""
    max_prompts_per_call: int = setting(128, ge=1, le=10_000, unit="prompts")
    """Prompts in one completions call."""
    scale_from_zero: bool = setting(False)
    """Whether requests queue for a model that no engine serves right now; otherwise 503."""
    default_deadline_s: float = setting(0.0, ge=0, unit="seconds")
    """Deadline of a request that names none, counted from its arrival; 0: none."""
    max_deadline_s: float = setting(86_400.0, gt=0, unit="seconds")
    """Longest deadline a caller may ask for."""
    inline_chars: int = setting(4_000, ge=0, unit="characters")
    """Prompts up to this long are tokenized on the event loop, longer ones on a thread."""
    text_threads: int = setting(2, ge=1, le=64, unit="threads")
    """Threads that render and tokenize long prompts."""

    # delivery
    resume_grace_s: float = setting(0.0, ge=0, le=3600, unit="seconds")
    """How long a request goes on without a reader, so that the client can resume it; 0: a client
    that leaves cancels it at once. It also outlives its gateway's lease by this; there, of engines
    and gateways the least counts, so it is the same for all."""
    silence_check_s: float = setting(5.0, gt=0.05, le=600, unit="seconds")
    """Silence of a request after which the gateway asks the server what became of it."""
    lost_engine_s: float = setting(60.0, gt=0.1, le=3600, unit="seconds")
    """How long a request may be without a living engine to run it before it ends with an error."""
    drain_s: float = setting(30.0, ge=0, le=3600, unit="seconds")
    """How long running streams may go on after SIGTERM; the rest is then handed over."""
    handover_s: float = setting(15.0, ge=0, le=3600, unit="seconds")
    """How long a stream that outlasts `drain_s` goes on without a reader. Its last event names the
    place where the client reads on, at any other gateway; 0: it is cancelled instead."""
    drain_notice_s: float = setting(0.0, ge=0, le=300, unit="seconds")
    """How long calls are still taken after SIGTERM, while load balancers note that this process is
    not ready. The chart sets it to what endpoints need to spread."""
    trim_age_s: float = setting(30.0, ge=0, le=3600, unit="seconds")
    """Result frames younger than this stay in the result stream, read or not."""

    # keys
    key_cache_s: float = setting(3.0, ge=0, le=60, unit="seconds")
    """How long a key read from the server is trusted: a revoked key works no longer than this."""
    card_cache_s: float = setting(2.0, ge=0, le=300, unit="seconds")
    """How long the list of models and engines is trusted."""

    # telemetry
    log_level: Level = setting("info")
    """Least level that is logged."""
    log_format: Format = setting("json")
    """Form of log lines."""
    otlp_endpoint: str | None = setting(None)
    """Where metrics and traces go over OTLP/gRPC, e.g. http://127.0.0.1:4317; unset: nowhere."""
    otlp_interval_s: float = setting(15.0, gt=0.1, le=3600, unit="seconds")
    """Time between two pushes of metrics."""
    trace_ratio: float = setting(1.0, ge=0, le=1)
    """Share of the calls that come without a trace which are recorded as one. A caller's own
    decision comes first. 0 records none at all."""


class GatewaySecrets(Secrets, env_prefix="HEADRACE_GATEWAY_"):
    """Secrets of one gateway process: from the environment or mounted files only."""

    redis_password: SecretStr | None = None
    """Password of the Redis server."""
    redis_sentinel_password: SecretStr | None = None
    """Password of the sentinels themselves, where they want one."""
    pepper: SecretStr | None = None
    """Key of the HMAC under which API keys are stored, at least 16 bytes. Without it no key is
    valid, and the gateway refuses to start."""
    initial_key: SecretStr | None = None
    """An API key with the scopes inference and admin, which the gateway makes known when it starts,
    and again when the server has lost it. One that is known stays as it is, also when it was revoked."""
