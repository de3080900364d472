"""The chart by its tools: lint, two helms, Kubernetes' own schemas, those of CRDs, policy checks."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from containers.chart_tools import program
from jsonschema import Draft7Validator
from support.chart import (
    CHART,
    CI_FILES,
    HELMS,
    MINORS,
    OLDEST,
    Doc,
    helm,
    render,
    rendered,
    text_of,
    tools,
)
from support.definitions import MODELLED, ROUTES, spoiled

CUSTOM = {*MODELLED, *ROUTES}
CHECKOV_EXCEPTIONS = {
    "CKV_K8S_11": "no CPU limits: they throttle what has to answer in milliseconds",
    "CKV_K8S_14": "tags are the chart's version; digests are the operator's choice (air gap)",
    "CKV_K8S_15": "IfNotPresent: an image that is here needs no registry to start",
    "CKV_K8S_43": "digests are the operator's choice (air gap)",
    "CKV_K8S_8": "a pod of helm test ends by itself",
    "CKV_K8S_9": "a pod of helm test ends by itself",
    "CKV_K8S_21": "the namespace is the release's",
}


def idfn(path: object) -> str:
    return path.name.removesuffix("-values.yaml") if isinstance(path, Path) else str(path)


@pytest.mark.parametrize("name", HELMS)
@pytest.mark.parametrize("file", CI_FILES, ids=idfn)
def test_lint_finds_nothing(name: str, file: Path) -> None:
    said = helm(name, "lint", "--strict", str(CHART), "-f", str(file)).stdout
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize("file", CI_FILES, ids=idfn)
def test_both_helms_render_the_same(file: Path) -> None:
    three, four = rendered(file, name="helm3"), rendered(file)
    assert without_secrets(three) == without_secrets(four)


def without_secrets(docs: tuple[Doc, ...]) -> list[Doc]:
    """Made passwords differ each time; and order is no promise."""
    kept = [doc for doc in docs if doc["kind"] != "Secret"]
    return sorted(kept, key=lambda doc: (doc["kind"], doc["metadata"]["name"]))


def test_the_chart_packs_and_installs_from_its_archive(tmp_path: Path) -> None:
    helm("helm4", "package", str(CHART), "-d", str(tmp_path))
    (archive,) = tmp_path.glob("headrace-*.tgz")
    said = helm("helm4", "template", "rel", str(archive)).stdout
    assert "kind: Deployment" in said
    assert archive.stat().st_size < 100_000


@pytest.mark.parametrize("minor", MINORS)
def test_kubernetes_knows_every_field(minor: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text("\n---\n".join(text_of(file=each, kube=f"{minor}.0") for each in CI_FILES))
    done = subprocess.run(
        [program("charts", "kubernetes-validate"), "-k", minor, "--strict", file],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Kinds without a schema are passed over with a warning: they must be those we know of.
    told = done.stdout + done.stderr
    unknown = Counter(re.findall(r"Couldn't find schema for kind (\w+)", told))
    docs = [doc for each in CI_FILES for doc in rendered(each)]
    kinds = Counter(doc["kind"] for doc in docs)
    custom = {kind: kinds[kind] for kind in CUSTOM}
    assert dict(unknown) == custom
    assert told.count("passed for resource") == len(docs) - sum(custom.values())


def test_the_oldest_cluster_gets_apis_that_it_has() -> None:
    kinds = {
        doc["kind"]: doc["apiVersion"] for each in CI_FILES for doc in rendered(each, kube=OLDEST)
    }
    assert kinds["PodDisruptionBudget"] == "policy/v1beta1"
    assert kinds["HorizontalPodAutoscaler"] == "autoscaling/v2beta2"
    assert kinds["Ingress"] == kinds["NetworkPolicy"] == "networking.k8s.io/v1"
    newest = {doc["kind"]: doc["apiVersion"] for each in CI_FILES for doc in rendered(each)}
    assert newest["PodDisruptionBudget"] == "policy/v1"
    assert newest["HorizontalPodAutoscaler"] == "autoscaling/v2"


def test_custom_resources_are_what_their_operators_take() -> None:
    docs = [doc for each in CI_FILES for doc in rendered(each) if doc["kind"] in MODELLED]
    assert {doc["kind"] for doc in docs} == set(MODELLED)
    assert modelled(docs) == [""] * len(docs)


def modelled(docs: list[Doc]) -> list[str]:
    """What the models of their kinds have against the documents, each; empty when nothing."""
    tools()
    done = subprocess.run(
        [program("charts", "python"), "-c", CHECK_MODELS, json.dumps(MODELLED)],
        input=json.dumps(docs),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


CHECK_MODELS = """
import importlib, json, sys
where, docs = json.loads(sys.argv[1]), json.load(sys.stdin)
def lost(given, kept, path):
    # The models take unknown fields in silence: what does not come back was unknown.
    if isinstance(given, dict):
        for key, value in given.items():
            assert isinstance(kept, dict) and key in kept, f"{path}.{key} is unknown"
            lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list):
        assert len(given) == len(kept), path
        for index, pair in enumerate(zip(given, kept)):
            lost(*pair, f"{path}[{index}]")
def against(doc):
    model = getattr(importlib.import_module(where[doc["kind"]]), doc["kind"])
    try:
        made = model.model_validate(doc)
        back = made.model_dump(by_alias=True, mode="json", exclude_none=True)
        lost(doc["spec"], back["spec"], f"{doc['kind']}.spec")
        extra = getattr(made.spec, "model_extra", None) or {}
        assert not extra, f"{doc['kind']}.spec has unknown {sorted(extra)}"
    except (AssertionError, ValueError) as error:
        return str(error)
    return ""
print(json.dumps([against(doc) for doc in docs]))
"""


def test_a_fault_that_an_operator_would_refuse_is_found() -> None:
    wrong = [spoiled(kind) for kind in MODELLED]
    for (doc, field), reason in zip(wrong, modelled([doc for doc, _ in wrong]), strict=True):
        assert field in reason, (doc["kind"], reason)


def test_routes_are_what_the_gateway_api_takes() -> None:
    docs = [doc for each in CI_FILES for doc in rendered(each) if doc["kind"] in ROUTES]
    assert {doc["kind"] for doc in docs} == set(ROUTES) == {"HTTPRoute", "GRPCRoute"}
    for doc in docs:
        assert doc["apiVersion"] == "gateway.networking.k8s.io/v1"
        assert faults(doc) == []


@pytest.mark.parametrize("kind", ROUTES)
def test_a_fault_of_a_route_is_found(kind: str) -> None:
    doc, field = spoiled(kind)
    [fault] = faults(doc)
    assert field in fault


def faults(doc: Doc) -> list[str]:
    """Where and why a route is none."""
    validator = cast(Any, Draft7Validator(ROUTES[doc["kind"]]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(doc["spec"])]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_policy_checks_pass_but_for_documented_exceptions(tmp_path: Path) -> None:
    tools()
    for file in CI_FILES:
        docs = [doc for doc in render(file=file) if doc["kind"] not in CUSTOM]
        (tmp_path / file.name).write_text(yaml.safe_dump_all(docs))
    done = subprocess.run(
        [
            program("checkov", "checkov"),
            *("-d", tmp_path, "--framework", "kubernetes", "--skip-download", "--compact"),
            *("--quiet", "-o", "json", "--skip-check", ",".join(CHECKOV_EXCEPTIONS)),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    summary = json.loads(done.stdout)["summary" if "summary" in done.stdout else "results"]
    failed = json.loads(done.stdout).get("results", {}).get("failed_checks", [])
    assert not failed, "\n".join(f"{each['check_id']} {each['resource']}" for each in failed)
    assert summary["passed"] > 500
    assert summary["parsing_errors"] == 0


def test_values_and_examples_are_well_formed_yaml() -> None:
    tools()
    rules = "{extends: relaxed, rules: {line-length: {max: 160}, document-start: disable}}"
    done = subprocess.run(
        [
            program("charts", "yamllint"),
            *("--strict", "-d", rules),
            *(CHART / "values.yaml", CHART / "Chart.yaml", CHART / "files/alerts.yaml"),
            *CI_FILES,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
