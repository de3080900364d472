"""Objects that tests put beside a release: Secrets, services, pods."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any


def made_of(kind: str, name: str, **files: bytes | str) -> dict[str, Any]:
    """A Secret or ConfigMap of files."""
    data = {
        key: base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in files.items()
    }
    field = "data" if kind == "Secret" else "binaryData"
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data}


def service(name: str, port: int, app: str) -> dict[str, Any]:
    ports = [{"port": port, "protocol": "TCP"}]
    spec = {"selector": {"app": app}, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def pod(
    name: str, containers: Mapping[str, tuple[str, list[str]]], mounts: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """A pod: image and command of each container, and where volumes are, for all of them."""
    places = [{"name": place.strip("/"), "mountPath": place} for place in mounts]
    volumes = [{"name": place.strip("/"), **source} for place, source in mounts.items()]
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": each,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "volumeMounts": places,
            }
            for each, (image, command) in containers.items()
        ],
        "volumes": volumes,
    }
    meta = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
