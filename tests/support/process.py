"""Real processes for tests: started with a ready file, logs kept, ended by their pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import cast

_START_S = 60.0
"""Longest start-up of a process on a busy machine; a test that waits this long has failed."""
_STOP_S = 20.0


class Process:
    """One ``python -m <module>`` of ours."""

    def __init__(
        self, module: str, folder: Path, *arguments: str, env: dict[str, str] | None = None
    ) -> None:
        """Starts it. ``folder`` gets its log and its ready file; only ``env`` tells it settings."""
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "log"
        self._ready_path = folder / "ready"
        self._ready_path.unlink(missing_ok=True)
        clean = {name: value for name, value in os.environ.items() if "HEADRACE_" not in name}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", module),
                    *("--ready-file", str(self._ready_path)),
                    *arguments,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={
                    **clean,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(Path(__file__).parent.parent),
                    **(env or {}),
                },
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def ready(self) -> dict[str, object]:
        """What it wrote into its ready file; waits for it."""
        deadline = time.monotonic() + _START_S
        while not self._ready_path.exists():
            if self._process.poll() is not None:
                raise AssertionError(f"exited with {self._process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready after {_START_S} s:\n{self.log()}")
            time.sleep(0.02)
        return cast("dict[str, object]", json.loads(self._ready_path.read_text()))

    @property
    def http_port(self) -> int:
        """Port of health and metrics."""
        port = self.ready["http_port"]
        assert isinstance(port, int)
        return port

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET on its HTTP port."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def log(self) -> str:
        """Everything it has written so far."""
        return self.log_path.read_text("utf-8", "replace")

    def wait_for_log(self, words: str) -> None:
        """Returns once the log has these words."""
        deadline = time.monotonic() + _START_S
        while words not in self.log():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def wait(self, seconds: float = _STOP_S) -> int:
        """Its exit code, once it has ended."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.log()}") from None

    def stop(self) -> int:
        """Asks it to end, and insists if it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()


def engine_process(
    folder: Path, redis_url: str, *arguments: str, module: str = "headrace_engine"
) -> Process:
    """An engine with the echo executor, small, on a free port."""
    return Process(
        module,
        folder,
        *("--executor", "echo", "--redis-url", redis_url, "--http-port", "0"),
        *("--no-echo-tokenizer", "--cache-blocks", "1024", "--model-name", "m"),
        *("--log-level", "info"),
        *arguments,
    )
