"""No value of the chart is taken and ignored: another one renders another chart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

import yaml
from support.chart import CHART, helm
from support.kubernetes import merged

Tree = dict[str, Any]

MODEL: Final = {"m": {"artifact": "hf://o/n@main"}}
PARENT: Final = [{"name": "public"}]
SERVER: Final = {"existingSecret": "redis", "gatewayUsername": "g", "engineUsername": "e"}
BASES: Final[tuple[Tree, ...]] = (
    {
        "gateway": {
            "autoscaling": {"enabled": True},
            "settings": {"metrics_need_key": True},
            "tls": {"enabled": True, "secretName": "tls"},
        },
        "engineDefaults": {
            "autoscaling": {"enabled": True},
            "cache": {"type": "claim", "accessModes": ["ReadWriteMany"]},
            "loader": {"tokenSecret": {"name": "hub"}},
        },
        "models": MODEL,
        "ingress": {"enabled": True, "hosts": ["a.example"], "tlsSecretName": "b"},
        "networkPolicy": {"gatewayFrom": [{"podSelector": {}}], "metricsFrom": [{}]},
        "metrics": {
            "keySecret": {"name": "scraper"},
            "podMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        },
        "route": {each: {"enabled": True, "parentRefs": PARENT} for each in ("http", "grpc")},
    },
    {
        "gateway": {
            "tls": {"enabled": True, "certManager": {"enabled": True, "issuerRef": {"name": "i"}}}
        },
        "engineDefaults": {
            "keda": {"enabled": True},
            "settings": {"executor": "cuda"},
            "accelerator": {"resource": "nvidia.com/gpu"},
        },
        "models": MODEL,
        "valkey": {"enabled": False},
        "externalRedis": {
            **SERVER,
            "host": "h",
            "tls": {"enabled": True, "caSecret": {"name": "c"}, "clientSecret": "d"},
        },
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    {
        "engineDefaults": {"cache": {"type": "existingClaim", "existingClaim": "cache"}},
        "valkey": {"enabled": False},
        "externalRedis": {**SERVER, "sentinel": {"nodes": ["s:1"], "service": "x"}},
    },
    {"engineDefaults": {"keda": {"enabled": True}, "workload": "StatefulSet"}},
    {},
)
"""Together they switch everything on."""
OTHER: Final[Tree] = {
    "pullPolicy": "Always",
    "digest": f"sha256:{'1' * 64}",
    "workload": "StatefulSet",
    "accessModes": ["ReadWriteMany", "ReadWriteOncePod"],
    "models": MODEL,
    "imagePullSecrets": ["x"],
    "cidrs": ["10.9.0.0/16"],
    "dnsNames": ["x.example"],
    "hostnames": ["x.example"],
    "hosts": ["x.example"],
    "nodes": ["y:2"],
    "extraObjects": [{"kind": "X", "metadata": {"name": "x"}}],
    "executor": "echo",
    "engineDefaults.cache.type": "emptyDir",
    "gateway.service.type": "NodePort",
}
"""By key or path, where one of the same type would not do."""


def leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of what holds no further keys."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(cast(Tree, value), (*path, key))
        else:
            yield (*path, key)


def other(path: tuple[str, ...], value: Any) -> Any:
    """Another value of the same type."""
    known = OTHER.get(".".join(path), OTHER.get(path[-1]))
    if known is not None:
        return known
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case list():
            return [{"name": "x"}]
        case dict():
            return {"x": "y"}
        case _:
            return 999


def changed(values: Tree, path: tuple[str, ...]) -> Tree:
    made = copy.deepcopy(values)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = other(path, at[path[-1]])
    return made


def text(values: Tree) -> str:
    """All that is rendered but Secrets, whose content is random; why not, where it is refused."""
    given = ["template", "rel", str(CHART), "--skip-schema-validation", "--values=-"]
    done = helm("helm4", *given, check=False, text=yaml.safe_dump(values))
    if done.returncode:
        return f"refused: {done.stderr}"
    return "\n---\n".join(
        each for each in done.stdout.split("\n---\n") if "\nkind: Secret\n" not in each
    )


def test_every_value_changes_what_is_rendered() -> None:
    defaults = cast(Tree, yaml.safe_load((CHART / "values.yaml").read_text()))
    bases = [merged(defaults, base) for base in BASES]
    plain = [text(base) for base in bases]
    assert not [each for each in plain if each.startswith("refused")]

    def is_read(path: tuple[str, ...]) -> bool:
        for base, before in zip(bases, plain, strict=True):
            after = text(changed(base, path))
            # Some switches do nothing alone: a refusal must say so.
            if after != before and (not after.startswith("refused") or ".".join(path) in after):
                return True
        return False

    paths = list(leaves(defaults))
    with ThreadPoolExecutor(2) as pool:
        read = dict(zip(paths, pool.map(is_read, paths), strict=True))
    assert len(paths) > 200
    ignored = [".".join(path) for path, found in read.items() if not found]
    assert not ignored, ignored
