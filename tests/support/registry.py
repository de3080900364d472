"""A registry of images and charts on loopback, which wants a password: Debian's."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from containers.cache import CACHE
from support.redis import free_port
from support.waiting import wait_until

USER: Final = "headrace"
PASSWORD: Final = "of-the-registry"
HASHED: Final = "$2b$05$headraceheadraceheadrOlQgeo5jrLxkt8GmKyU6KMZSidmtBqHO"
"""Of the password; the registry reads no other kind than bcrypt's."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Where it listens, and files that tell clients of it."""

    address: str
    """``127.0.0.1:PORT``."""
    logins: Path
    """User and password, as ``docker login`` keeps them."""
    home: Path
    """Where skopeo finds said that it speaks without TLS."""

    @property
    def environ(self) -> dict[str, str]:
        """What makes skopeo and helm log in."""
        return {
            "REGISTRY_AUTH_FILE": str(self.logins),
            "HELM_REGISTRY_CONFIG": str(self.logins),
            "HOME": str(self.home),
        }


@contextmanager
def registry(folder: Path) -> Generator[Registry]:
    """One that runs while the block does, with what it holds in ``folder``."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    users = folder / "users"
    users.write_text(f"{USER}:{HASHED}\n")
    config = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "auth": {"htpasswd": {"realm": "registry", "path": str(users)}},
        "http": {"addr": address},
    }
    (folder / "config.json").write_text(json.dumps(config))  # JSON is YAML
    shown = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    made = Registry(address, folder / "logins.json", folder)
    made.logins.write_text(json.dumps({"auths": {address: {"auth": shown}}}))
    plain = folder / ".config/containers/registries.conf"
    plain.parent.mkdir(parents=True)
    plain.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [CACHE / "registry/docker-registry", "serve", folder / "config.json"],
            stdout=written,
            stderr=written,
            env=os.environ | {"OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        wait_until(lambda: answers(address), log.read_text, within_s=60.0, every_s=0.1)
        yield made
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    """Whether it asks who is there."""
    try:
        return httpx.get(f"http://{address}/v2/", trust_env=False).status_code == 401
    except httpx.TransportError:
        return False
