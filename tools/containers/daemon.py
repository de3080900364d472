"""Starts the container engine on a private socket, and stops it so that nothing is left.

usage: daemon.py up | down | env

``up`` leaves it running (``eval "$(tools/containers/daemon.py env)"`` makes `docker` talk to it);
tests use one that runs, and start and stop one otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers.cache import CACHE, STATE, say, told

_START_S: Final = 120.0
_STOP_S: Final = 120.0
_TIDY_S: Final = 120.0
_BUILD_CACHE_BYTES: Final = 8_000_000_000
_CLAMP: Final = Path(__file__).with_name("runc-clamp")
_STARTED: Final[dict[int, subprocess.Popen[bytes]]] = {}
"""By pid, what this process has started: who starts a child asks for it when it ends."""
_BRIDGE: Final = "headrace-ci0"
_ADDRESS: Final = "172.30.0.1/24"
_POOL: Final = "base=172.31.0.0/16,size=24"
"""Networks that compose makes. Apart from what clusters and engines take by default."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One dockerd: its socket, logs and pid in ``state``, its images and build cache in ``cache``."""

    state: Path = STATE
    cache: Path = CACHE

    @property
    def socket(self) -> Path:
        return self.state / "docker.sock"

    @property
    def log(self) -> Path:
        return self.state / "dockerd.log"

    @property
    def environ(self) -> dict[str, str]:
        """What makes any client talk to it, with compose and buildx at hand."""
        return {
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(self.state / "config"),
            "DOCKER_BUILDKIT": "1",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
            "PATH": f"{self.cache / 'engine/bin'}:{os.environ['PATH']}",
        }

    def docker(
        self,
        *arguments: str | Path,
        timeout_s: float = 120.0,
        check: bool = True,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Runs ``docker``; returns its standard output. Raises AssertionError with both outputs."""
        command = ["docker", *map(str, arguments)]
        done = subprocess.run(
            command,
            env=os.environ | self.environ | dict(environ or {}),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            tail = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
            raise AssertionError(f"`{shlex.join(command)}` ended with {done.returncode}:\n{tail}")
        return done.stdout

    @property
    def pid(self) -> int | None:
        """Of the daemon that runs on this socket, or None."""
        try:
            pid = int((self.state / "dockerd.pid").read_text())
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if name == "dockerd" else None

    def up(self) -> bool:
        """Starts it. False when it was running already."""
        with self._locked():
            if self.pid is not None:
                return False
            with told("starting the container engine"):
                self._prepare()
                self._start()
        return True

    def down(self) -> None:
        """Stops it and what it ran; removes its mounts, bridges and firewall chains."""
        with self._locked():
            if self.pid is not None:
                with told("stopping the container engine"):
                    self._empty()
                    self._stop()
            self._sweep()

    def tidy(self) -> None:
        """Drops images that have lost their name, and the oldest of a large build cache.

        That waits for the disk, so what is not done in time is left to the next one.
        """
        keep = ("--keep-storage", str(_BUILD_CACHE_BYTES))
        for what in (("image", "prune", "--force"), ("builder", "prune", "--force", *keep)):
            with contextlib.suppress(subprocess.TimeoutExpired), told(f"docker {' '.join(what)}"):
                self.docker(*what, timeout_s=_TIDY_S)

    def leftovers(self) -> list[str]:
        """Processes, mounts, bridges and firewall chains of an engine that has been stopped."""
        found = [f"mount {place}" for place in self._mounts()]
        if _quietly("ip", "link", "show", _BRIDGE) is not None:
            found.append(f"bridge {_BRIDGE}")
        for table in ("nat", "filter"):
            rules = (_quietly("iptables", "-w", "-t", table, "-S") or "").splitlines()
            found += [f"rule {table} {rule}" for rule in rules if _BRIDGE in rule]
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                if entry.name.isdigit() and f"{self.state}/" in line and "containerd" in line:
                    found.append(f"process {entry.name} {line.replace(chr(0), ' ')}")
        return found

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _prepare(self) -> None:
        plugins = self.state / "config/cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        for plugin in (self.cache / "engine/cli-plugins").iterdir():
            link = plugins / plugin.name
            link.unlink(missing_ok=True)
            link.symlink_to(plugin)
        # Another engine on this machine owns chains of the same name: those stay.
        marker = self.state / "chains-were-there"
        marker.unlink(missing_ok=True)
        if _quietly("iptables", "-w", "-t", "nat", "-S", "DOCKER") is not None:
            marker.touch()
        if _quietly("ip", "link", "show", _BRIDGE) is None:
            subprocess.run(["ip", "link", "add", _BRIDGE, "type", "bridge"], check=True)
            subprocess.run(["ip", "addr", "add", _ADDRESS, "dev", _BRIDGE], check=True)
            subprocess.run(["ip", "link", "set", _BRIDGE, "up"], check=True)

    def _start(self) -> None:
        command = [
            *("dockerd", "--host", f"unix://{self.socket}"),
            *("--data-root", str(self.cache / "docker"), "--exec-root", str(self.state / "exec")),
            *("--pidfile", str(self.state / "dockerd.pid")),
            *("--bridge", _BRIDGE, "--default-address-pool", _POOL),
            *("--add-runtime", f"clamp={_CLAMP}", "--default-runtime", "clamp"),
            *("--default-ulimit", "nofile=10000:10000", "--log-opt", "max-size=20m"),
        ]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                env=os.environ | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _STARTED[process.pid] = process
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            if process.poll() is not None:
                break
            with contextlib.suppress(AssertionError):
                self.docker("version")
                return
            time.sleep(0.1)
        tail = self.log.read_text(errors="replace")[-4000:]
        raise SystemExit(f"containers: the engine did not start; {self.log} ends with\n{tail}")

    def _empty(self) -> None:
        containers = self.docker("ps", "--all", "--quiet", check=False).split()
        if containers:
            self.docker("rm", "--force", "--volumes", *containers, check=False)
        self.docker("network", "prune", "--force", check=False)

    def _stop(self) -> None:
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + _STOP_S
        while time.monotonic() < end:
            if pid in _STARTED:
                _STARTED[pid].poll()  # a child of ours stays a zombie until it is asked for
            if not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.1)
        raise SystemExit(f"containers: dockerd, pid {pid}, does not end")

    def _sweep(self) -> None:
        """Mounts, the bridge and the chains outlive dockerd."""
        for place in self._mounts():
            _quietly("umount", place)
        if _quietly("ip", "link", "show", _BRIDGE) is not None:
            _quietly("ip", "link", "delete", _BRIDGE)
            if not (self.state / "chains-were-there").exists():
                _remove_chains()
        for name in ("exec", "config"):
            shutil.rmtree(self.state / name, ignore_errors=True)

    def _mounts(self) -> list[str]:
        """Below its folders, the innermost first."""
        places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        roots = (f"{self.state}/", f"{self.cache / 'docker'}/")
        return sorted((place for place in places if place.startswith(roots)), reverse=True)


def _remove_chains() -> None:
    for table in ("nat", "filter"):
        rules = (_quietly("iptables", "-w", "-t", table, "-S") or "").splitlines()
        ours = [rule for rule in rules if "DOCKER" in rule or _BRIDGE in rule or "172.30.0" in rule]
        chains = [rule.split()[1] for rule in ours if rule.startswith("-N ")]
        for rule in ours:
            if rule.startswith("-A "):
                _quietly("iptables", "-w", "-t", table, "-D", *shlex.split(rule)[1:])
        for chain in chains:
            _quietly("iptables", "-w", "-t", table, "-X", chain)


def _quietly(*command: str) -> str | None:
    """What a program says, or None when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout


def main() -> int:
    """Does what it is told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["up", "down", "env"])
    daemon = Daemon()
    match parser.parse_args().action:
        case "up":
            if not daemon.up():
                say("it is running already")
        case "down":
            daemon.down()
        case _:
            for name, value in daemon.environ.items():
                print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
