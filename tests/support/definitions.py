"""Definitions of operators' kinds for a cluster that has no operators: names, types and bounds of ``spec``.

They are made of the models and schemas that ``tests/deploy`` has of these kinds, not taken from the
operators, whose definitions no package registry has. What acts on the objects is not there.
"""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from containers.cache import ROOT
from containers.chart_tools import program
from support.chart import CI_FILES, Doc, rendered, tools
from support.kubernetes import Cluster, Refused, until

MODELLED: Final = {
    "PodMonitor": "cloudcoil.models.prometheus_operator.v1",
    "ServiceMonitor": "cloudcoil.models.prometheus_operator.v1",
    "PrometheusRule": "cloudcoil.models.prometheus_operator.v1",
    "ScaledObject": "cloudcoil.models.keda.v1alpha1",
    "TriggerAuthentication": "cloudcoil.models.keda.v1alpha1",
    "Certificate": "cloudcoil.models.cert_manager.v1",
}
"""Kinds whose models can be had, made from releases 0.80.1, 2.16.1 and 1.17.1 of their operators."""
ROUTES: Final = {
    file.stem: json.loads(file.read_text())
    for file in sorted((ROOT / "tests/deploy/schemas").glob("*.json"))
}
"""Kinds whose schemas lie in the tree: of ``spec``, by ``tools/crd_schemas.py``."""
VERSIONS: Final = {
    "PodMonitor": "monitoring.coreos.com/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
    "Certificate": "cert-manager.io/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "GRPCRoute": "gateway.networking.k8s.io/v1",
}
"""Under which group and version the chart asks for each."""
WORDS: Final = {
    *("title", "description", "default", "$comment", "nullable"),
    # What a definition takes from the fields that it names, and not from here.
    *("additionalProperties", "anyOf", "$ref", "properties"),
}
WRONG: Final[dict[str, tuple[str, Any]]] = {
    "PrometheusRule": ("spec.gruops", []),
    "PodMonitor": ("spec.podMetricsEndpoints.0.intervall", "15s"),
    "ServiceMonitor": ("spec.endpoints.0.portt", "http"),
    "ScaledObject": ("spec.minReplicaCount", "few"),
    "TriggerAuthentication": ("spec.secretTargetRef.0.name", None),
    "Certificate": ("spec.issuerRef.nmae", "internal"),
    "HTTPRoute": ("spec.rules.0.timeouts.request", "0"),
    "GRPCRoute": ("spec.rules.0.timeouts", {"request": "0s"}),
}
"""A fault of each kind: a field that is not known, one of a wrong type, one that is missing."""
MODELS_SCRIPT: Final = """
import importlib, json, sys
found = {}
for kind, module in json.loads(sys.argv[1]).items():
    model = getattr(importlib.import_module(module), kind)
    found[kind] = model.model_json_schema(by_alias=True)
print(json.dumps(found))
"""


@contextmanager
def operators_kinds(cluster: Cluster) -> Generator[None]:
    """The kinds are served while the block runs; their objects go with them."""
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions()})
    names = [name_of(kind) for kind in VERSIONS]
    try:
        cluster.kubectl("apply", "--filename=-", given=given)
        until(lambda: served(cluster) == set(VERSIONS), "the kinds of operators are not served")
        yield
    finally:
        cluster.kubectl("delete", "customresourcedefinitions", *names, "--ignore-not-found")
        until(lambda: not served(cluster), "the kinds of operators are still served")


def served(cluster: Cluster) -> set[str]:
    """Those of the kinds that the API knows now."""
    found: set[str] = set()
    for version in sorted(set(VERSIONS.values())):
        try:
            listed = json.loads(cluster.kubectl("get", "--raw", f"/apis/{version}"))
        except Refused:
            continue  # nobody has defined a kind of that group, or its last one is going
        found |= {each["kind"] for each in listed["resources"]}
    return found & set(VERSIONS)


def name_of(kind: str) -> str:
    """As the API lists it: ``httproutes.gateway.networking.k8s.io``."""
    return f"{kind.lower()}s.{VERSIONS[kind].partition('/')[0]}"


def definitions() -> list[dict[str, Any]]:
    """A CustomResourceDefinition for each kind."""
    specs = {**specs_of_models(), **{kind: structural(each, {}) for kind, each in ROUTES.items()}}
    return [definition(kind, specs[kind]) for kind in VERSIONS]


def definition(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """One, with what it says of ``spec``; a status is anything."""
    group, _, version = VERSIONS[kind].partition("/")
    schema = {
        "type": "object",
        "properties": {
            "spec": spec,
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
        "required": ["spec"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": name_of(kind),
            # The API asks for a reason where a group is Kubernetes' own.
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def specs_of_models() -> dict[str, dict[str, Any]]:
    """Of each kind that has a model, what it says of ``spec``."""
    tools()
    done = subprocess.run(
        [program("charts", "python"), "-c", MODELS_SCRIPT, json.dumps(MODELLED)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return {
        kind: structural(schema["properties"]["spec"], schema["$defs"])
        for kind, schema in found.items()
    }


def structural(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """The same as definitions want it: written out, a type everywhere, and nothing that may be null.

    What ``named`` holds is what references lead to.
    """
    if reference := schema.get("$ref"):
        return structural(named[reference.rpartition("/")[2]], named)
    kept = {key: value for key, value in schema.items() if key not in WORDS}
    if choices := schema.get("anyOf"):
        given = [structural(each, named) for each in choices if each.get("type") != "null"]
        if len(given) == 1:
            return given[0] | kept
        types = {each.get("type") for each in given}
        assert types == {"integer", "string"}, schema
        return {"x-kubernetes-int-or-string": True}
    if fields := cast("dict[str, Any] | None", schema.get("properties")):
        kept["type"] = "object"
        kept["properties"] = {name: structural(each, named) for name, each in fields.items()}
    elif kept.get("type") == "object":
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            kept["additionalProperties"] = structural(cast("dict[str, Any]", values), named)
        else:
            kept["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in kept:
        kept["items"] = structural(kept["items"], named)
    return kept


def spoiled(kind: str) -> tuple[Doc, str]:
    """A document of a kind with its fault, and the field where it lies."""
    found = [doc for each in CI_FILES for doc in rendered(each) if doc["kind"] == kind]
    doc = copy.deepcopy(found[0])
    path, value = WRONG[kind]
    *above, last = path.split(".")
    place: Any = doc
    for step in above:
        place = place[int(step) if step.isdigit() else step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return doc, last
