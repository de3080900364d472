"""The processes of the local stack: their programs, environments, and signs of being ready.

The services are the same programs as in a cluster; all they are told is in their environment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml

from headrace_cli import ports, valkey
from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir
from headrace_cli.supervisor import ChildSpec

GATEWAY_DRAIN_S: Final = 2.0
ENGINE_DRAIN_S: Final = 2.0
ENGINE_LEASE_MS: Final = "5000"
"""All on one machine: a lease need not outlast a network."""
STOP_SLACK_S: Final = 6.0
"""Beyond its drain time, how long a process may take to stop: last events, last words, good-bye."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``headrace serve`` was asked for. None: the service's own default."""

    model: str | None
    http_port: int
    grpc_port: int
    gateways: int
    api_key: str | None
    config_file: Path | None
    dtype: str | None
    executor: str | None
    quiet: bool


class Processes:
    """Makes the specification of each process of one stack."""

    def __init__(
        self,
        options: ServeOptions,
        state: StateDir,
        environ: Mapping[str, str],
        *,
        http_ports: list[int],
        grpc_ports: list[int],
        redis_port: int,
    ) -> None:
        """``environ`` is the person's: what it sets about the services holds, except where and
        what. Raises CommandFailed for a configuration file that cannot be read.
        """
        self._options = options
        self._state = state
        self._environ = environ
        self._http_ports = http_ports
        self._grpc_ports = grpc_ports
        self._redis_port = redis_port
        named = environ.get("HEADRACE_CONFIG_FILE")
        self._config = options.config_file or (Path(named) if named else None)
        self._file = _sections(self._config)
        self.redis_url = f"redis://{ports.HOST}:{redis_port}/0"
        self.redis_password = state.secret(state.redis_password_file)
        self.pepper = state.secret(state.pepper_file).encode()

    def gateways(self) -> list[ChildSpec]:
        return [self.gateway(i) for i in range(len(self._http_ports))]

    def valkey(self) -> ChildSpec:
        config = valkey.write_config(self._state, self._redis_port)

        async def is_ready() -> bool:
            return await valkey.answers(self.redis_url, self.redis_password)

        return ChildSpec(
            name="valkey",
            argv=[str(valkey.binary()), str(config)],
            environ=dict(self._environ),
            is_ready=is_ready,
            ready_within_s=60,
            log_file=self._log("valkey"),
        )

    def engine(self) -> ChildSpec:
        asked = {
            "MODEL": self._options.model,
            "DTYPE": self._options.dtype,
            "EXECUTOR": self._options.executor,
        }
        values = {name: value for name, value in asked.items() if value is not None}
        # Restarted only when the one before it is gone, and alone on this server.
        values |= {"NAME": "engine", "SOLE_NAME": "true"}
        return self._service("engine", "engine", values | {"HTTP_PORT": "0"}, ENGINE_DRAIN_S)

    def gateway(self, i: int) -> ChildSpec:
        name = "gateway" if len(self._http_ports) == 1 else f"gateway-{i + 1}"
        values = {
            "NAME": name,
            "HTTP_HOST": ports.HOST,
            "GRPC_HOST": ports.HOST,
            "HTTP_PORT": str(self._http_ports[i]),
            "GRPC_PORT": str(self._grpc_ports[i]),
            "PEPPER_FILE": str(self._state.pepper_file),
        }
        return self._service(name, "gateway", values, GATEWAY_DRAIN_S)

    def _service(
        self, name: str, service: str, values: Mapping[str, str], drain_s: float
    ) -> ChildSpec:
        """A process of ours: set up by its environment, ready when its ready file is there."""
        ready_file = self._state.run / f"{name}.ready.json"
        prefix = f"HEADRACE_{service.upper()}_"
        environ = dict(self._environ)
        in_file = self._file.get(service, {})
        usual = {"LOG_FORMAT": "console", "DRAIN_S": f"{drain_s:g}"}
        if service == "engine":
            usual |= {"LEASE_MS": ENGINE_LEASE_MS, "JOURNAL_DIR": str(self._state.journals)}
        for key, value in usual.items():
            if key.lower() not in in_file:  # the environment would win over the file
                environ.setdefault(prefix + key, value)
        longest_drain = environ.get(prefix + "DRAIN_S", str(in_file.get("drain_s")))
        notice = environ.get(prefix + "DRAIN_NOTICE_S", str(in_file.get("drain_notice_s")))
        environ |= {prefix + key: value for key, value in values.items()}
        environ |= {
            prefix + "REDIS_URL": self.redis_url,
            prefix + "REDIS_PASSWORD_FILE": str(self._state.redis_password_file),
            prefix + "READY_FILE": str(ready_file),
            "PYTHONUNBUFFERED": "1",
        }
        environ.pop(prefix + "REDIS_PASSWORD", None)
        if self._config is not None:
            environ["HEADRACE_CONFIG_FILE"] = str(self._config.absolute())

        async def is_ready() -> bool:
            return ready_file.exists()

        return ChildSpec(
            name=name,
            argv=[sys.executable, "-m", f"headrace_{service}"],
            environ=environ,
            is_ready=is_ready,
            before_start=lambda: ready_file.unlink(missing_ok=True),
            stop_within_s=_seconds(longest_drain, drain_s) + _seconds(notice, 0.0) + STOP_SLACK_S,
            log_file=self._log(name),
        )

    def _log(self, name: str) -> Path:
        """This run's log file; the last run's is kept beside it."""
        path = self._state.logs / f"{name}.log"
        if path.exists():
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
        return path


def _sections(path: Path | None) -> dict[str, dict[str, object]]:
    """Sections of the configuration file; the services check their own."""
    if path is None:
        return {}
    try:
        loaded: object = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}.", hint="See --engine-config.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandFailed(f"{path} is not YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise CommandFailed(f"{path} has no sections `engine:` or `gateway:`.")
    return {
        str(name): cast("dict[str, object]", section)
        for name, section in cast("dict[object, object]", loaded).items()
        if isinstance(section, dict)
    }


def _seconds(text: str, otherwise: float) -> float:
    try:
        return float(text)
    except ValueError:
        return otherwise  # the service refuses it, with its name
