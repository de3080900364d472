"""A model hub on loopback: what its client asks of one, whole or breaking off."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 1 << 12
"""From this size on a file is known by its SHA-256, as large files are."""


@dataclass
class Hub:
    """One repository, ``org/tiny``, with one commit on ``main``."""

    files: dict[str, bytes]
    commit: str = "1" * 40
    url: str = ""
    asked: list[str] = field(default_factory=list[str])
    """Method, path and range of every request."""
    break_after: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes after which the first answers with a file break off."""
    damaged: set[str] = field(default_factory=set[str])
    """Files that are sent with one bit wrong."""

    def describe(self) -> dict[str, object]:
        """What the API says of the repository."""
        return {
            "id": "org/tiny",
            "modelId": "org/tiny",
            "sha": self.commit,
            "siblings": [self._sibling(name, content) for name, content in self.files.items()],
        }

    def _sibling(self, name: str, content: bytes) -> dict[str, object]:
        made: dict[str, object] = {
            "rfilename": name,
            "size": len(content),
            "blobId": git_digest(content),
        }
        if len(content) >= LARGE:
            digest = hashlib.sha256(content).hexdigest()
            made["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
        return made

    def path(self, name: str) -> str:
        """Where a file of the commit is."""
        return f"/org/tiny/resolve/{self.commit}/{name}"

    def tree(self) -> list[dict[str, object]]:
        """The commit's files, as its client lists them before a download."""
        made: list[dict[str, object]] = []
        for name, content in self.files.items():
            entry: dict[str, object] = {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": git_digest(content),
            }
            if len(content) >= LARGE:
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            made.append(entry)
        return made

    def etag(self, name: str) -> str:
        """As the hub has it: SHA-256 of large files, git's name of small ones."""
        content = self.files[name]
        if len(content) >= LARGE:
            return hashlib.sha256(content).hexdigest()
        return git_digest(content)


def git_digest(content: bytes) -> str:
    """The name that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def hub(files: Mapping[str, bytes], *, host: str = "127.0.0.1", port: int = 0) -> Generator[Hub]:
    """Serves the files until the end of the block. Another host than loopback is for containers."""
    made = Hub(dict(files))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            wanted = self.headers.get("Range", "")
            made.asked.append(f"{self.command} {path} {wanted}".strip())
            api = "/api/models/org/tiny"
            if path in (f"{api}/revision/main", f"{api}/revision/{made.commit}"):
                self._send(200, json.dumps(made.describe()).encode(), body=body)
                return
            if path == f"{api}/tree/{made.commit}":
                self._send(200, json.dumps(made.tree()).encode(), body=body)
                return
            for revision in ("main", made.commit):
                name = path.removeprefix(f"/org/tiny/resolve/{revision}/")
                if name in made.files:
                    self._file(name, wanted, body=body)
                    return
            code = (
                "RevisionNotFound" if path.startswith("/api/models/org/tiny/") else "RepoNotFound"
            )
            self._send(404, b"{}", body=body, extra={"X-Error-Code": code})

        def _file(self, name: str, wanted: str, *, body: bool) -> None:
            content = made.files[name]
            if name in made.damaged:
                content = bytes([content[0] ^ 1]) + content[1:]
            first = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            extra = {
                "ETag": f'"{made.etag(name)}"',
                "X-Repo-Commit": made.commit,
                "Accept-Ranges": "bytes",
            }
            if wanted:
                extra["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            stop = made.break_after.pop(name, None) if body else None
            self._send(206 if wanted else 200, content[first:], body=body, extra=extra, stop=stop)

        def _send(
            self,
            status: int,
            content: bytes,
            *,
            body: bool,
            extra: Mapping[str, str] | None = None,
            stop: int | None = None,
        ) -> None:
            self.send_response(status)
            for key, value in (extra or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content[:stop])
            if stop is not None:
                self.close_connection = True

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    made.url = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
