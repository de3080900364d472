"""Keeps dnsmasq's hosts file in step with the cluster's services; runs until it is ended.

A service with an address of its own is that address, also under other names if it says so. A headless
one is its ready pods, each also under its host name. Only the standard library, since it runs outside
the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError

API = "https://127.0.0.1:16443"
EVERY_S = 0.5
OUTSIDE = "headrace.test/names"
"""Annotation of a service with names that it stands in for, which are nobody's in the cluster."""


def main() -> None:
    """Looks, writes, tells dnsmasq."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pki", type=Path, required=True)
    parser.add_argument("--hosts", type=Path, required=True)
    parser.add_argument("--dnsmasq", type=int, required=True, metavar="PID")
    given = parser.parse_args()
    context = ssl.create_default_context(cafile=str(given.pki / "ca.crt"))
    context.load_cert_chain(given.pki / "admin.crt", given.pki / "admin.key")
    told = ""
    while True:
        try:
            text = hosts(items(context, "services"), items(context, "endpoints"))
        except (URLError, TimeoutError, ConnectionError):
            text = told
        if text != told:
            fresh = given.hosts.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(given.hosts)
            os.kill(given.dnsmasq, signal.SIGHUP)
            told = text
        time.sleep(EVERY_S)


def items(context: ssl.SSLContext, kind: str) -> list[dict[str, Any]]:
    """All objects of a kind, of every namespace."""
    with urllib.request.urlopen(f"{API}/api/v1/{kind}", timeout=5, context=context) as answer:
        return json.load(answer)["items"]


def hosts(services: list[dict[str, Any]], endpoints: list[dict[str, Any]]) -> str:
    """The hosts file: one line an address and name, in order."""
    lines: set[str] = set()
    headless: set[str] = set()
    for service in services:
        name, address = name_of(service), service["spec"].get("clusterIP")
        if address == "None":
            headless.add(name)
        elif address:
            lines.add(f"{address} {name}")
            notes = service["metadata"].get("annotations", {})
            lines |= {f"{address} {each}" for each in notes.get(OUTSIDE, "").split()}
    for each in endpoints:
        name = name_of(each)
        if name not in headless:
            continue
        for subset in cast("list[dict[str, Any]]", each.get("subsets") or []):
            for found in cast("list[dict[str, Any]]", subset.get("addresses") or []):
                lines.add(f"{found['ip']} {name}")
                if "hostname" in found:
                    lines.add(f"{found['ip']} {found['hostname']}.{name}")
    return "".join(f"{line}\n" for line in sorted(lines))


def name_of(found: dict[str, Any]) -> str:
    """The name under which pods ask for it."""
    meta = found["metadata"]
    return f"{meta['name']}.{meta['namespace']}.svc.cluster.local"


if __name__ == "__main__":
    main()
