"""Somebody who follows a guide: types what stands there, in a shell with the tools that it asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from containers.cache import ROOT
from support.kubernetes import Cluster
from support.redis import free_port

TYPED_S: Final = 400.0
"""Longest that one block may take."""
PRELUDE: Final = (
    "set -euo pipefail; shopt -s expand_aliases; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
)
IN_THE_POD: Final = """#!/bin/sh
exec kubectl -n {namespace} exec headrace-valkey-0 -- env REDISCLI_AUTH="$REDISCLI_AUTH" valkey-cli -e "$@"
"""
"""A client of the server where this machine has none: the one in its pod. What the server refuses
fails (``-e``), where a reader would see it.
"""
FORWARD: Final = re.compile(r"port-forward (svc/\S+) (\d+) &")


def block(page: str, heading: str, number: int = 0) -> str:
    """A block of commands below a heading of a guide, by its number there."""
    text = (ROOT / "docs/guides" / page).read_text()
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[number]


@dataclass(frozen=True, slots=True)
class Reader:
    """Follows guides in a folder of its own, for a release ``headrace`` in a namespace."""

    cluster: Cluster
    namespace: str
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is said to programs besides."""

    def __post_init__(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "helm").symlink_to(self.cluster.binaries / "helm4")
        server = programs / "valkey-cli"
        server.write_text(IN_THE_POD.format(namespace=self.namespace))
        server.chmod(0o755)
        (self.folder / "charts").mkdir()
        (self.folder / "charts/headrace").symlink_to(self.cluster.chart)

    def type(self, commands: str, replaced: Mapping[str, str] | None = None) -> str:
        """Runs commands of a guide; what they print. Raises AssertionError with what they said.

        Other than there: the namespace, ports of this machine, and what ``replaced`` names, since
        it differs from reader to reader. What was sent to the background ends with the rest.
        """
        for word, other in (replaced or {}).items():
            assert word in commands, word
            commands = commands.replace(word, other)
        commands = re.sub(
            r"(-n|--namespace|namespace) headrace\b", rf"\1 {self.namespace}", commands
        )
        for target, port in FORWARD.findall(commands):
            local = free_port()
            reached = f"until (exec 3<>/dev/tcp/127.0.0.1/{local}) 2>/dev/null; do sleep 0.1; done"
            commands = commands.replace(
                f"port-forward {target} {port} &",
                f"port-forward {target} {local}:{port} >/dev/null &\n{reached}",
            ).replace(f"127.0.0.1:{port}", f"127.0.0.1:{local}")
        programs = [self.folder / "bin", self.cluster.binaries, Path(sys.executable).parent]
        homes = {
            f"HELM_{kind}_HOME": str(self.folder / kind) for kind in ("CACHE", "CONFIG", "DATA")
        }
        done = subprocess.run(
            ["bash", "-c", f"{PRELUDE}\n{commands}"],
            cwd=self.folder,
            env={
                **os.environ,
                **homes,
                "KUBECONFIG": str(self.cluster.kubeconfig),
                "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
                **self.environ,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # of what the server keeps not all is text
            timeout=TYPED_S,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout
