"""``values.schema.json``: types from the defaults, settings from the services, the rest from here.

Every object that is ours is closed, so that a typo fails and is named. Objects of Kubernetes are
checked by Kubernetes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from headrace_engine.settings import EngineSettings
from headrace_gateway.settings import GatewaySettings
from headrace_kit.settings import Settings

from chartgen.values import Tree, Value, read

Schema = dict[str, Any]

OURS_GATEWAY: Final = frozenset(
    {
        *("http_host", "http_port", "grpc_host", "grpc_port", "ready_file", "name"),
        *("redis_url", "redis_ca_file", "redis_cert_file", "redis_key_file"),
        *("tls_cert_file", "tls_key_file", "resume_grace_s"),
    }
)
OURS_ENGINE: Final = frozenset(
    {
        *("http_host", "http_port", "ready_file", "name", "sole_name", "cache_dir"),
        *("redis_url", "redis_ca_file", "redis_cert_file", "redis_key_file"),
        *("model", "model_name", "model_sha256", "resume_grace_s"),
    }
)
"""Settings that the chart decides, or that stand once for both services."""
COMMON: Final = ("log_level", "log_format", "otlp_endpoint", "otlp_interval_s", "resume_grace_s")

_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?$"
_QUANTITY: Schema = {"type": ["string", "number"]}
_WORDS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_FREE: Schema = {"type": "object"}
_LIST: Schema = {"type": "array", "items": {"type": "object"}}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_COUNT: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]
}
_GRACE: Schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
_SPAN: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"}
_RESOURCES: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "limits": {"type": "object", "additionalProperties": _QUANTITY},
        "requests": {"type": "object", "additionalProperties": _QUANTITY},
    },
}

BY_KEY: Final[Mapping[str, Schema]] = {
    "annotations": _WORDS,
    "labels": _WORDS,
    "commonLabels": _WORDS,
    "commonAnnotations": _WORDS,
    "podAnnotations": _WORDS,
    "podLabels": _WORDS,
    "nodeSelector": _WORDS,
    "tolerations": _LIST,
    "affinity": _FREE,
    "topologySpreadConstraints": _LIST,
    "behavior": _FREE,
    "resources": _RESOURCES,
    "extraEnv": _LIST,
    "extraEnvFrom": _LIST,
    "extraVolumes": _LIST,
    "extraVolumeMounts": _LIST,
    "extraEgress": _LIST,
    "extraGroups": _LIST,
    "relabelings": _LIST,
    "metricRelabelings": _LIST,
    "parentRefs": _LIST,
    "gatewayFrom": _LIST,
    "metricsFrom": _LIST,
    "imagePullSecrets": _TEXTS,
    "hostnames": _TEXTS,
    "hosts": _TEXTS,
    "cidrs": _TEXTS,
    "dnsNames": _TEXTS,
    "nodes": {"type": "array", "items": {"type": "string", "pattern": r"^[^:/@,\s]+:[0-9]+$"}},
    "accessModes": {
        "type": "array",
        "minItems": 1,
        "items": {"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]},
    },
    "maxSurge": _COUNT,
    "maxUnavailable": _COUNT,
    "terminationGracePeriodSeconds": _GRACE,
    "pullPolicy": {"enum": ["IfNotPresent", "Always", "Never"]},
    "interval": _SPAN,
    "duration": _SPAN,
    "renewBefore": _SPAN,
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
}
"""What a key is wherever it stands."""

BY_PATH: Final[Mapping[str, Schema]] = {
    "fullnameOverride": {"type": "string", "maxLength": 40},
    "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
    "gateway.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "gateway.service.externalTrafficPolicy": {"enum": ["", "Cluster", "Local"]},
    "gateway.service.httpPort": {"type": "integer", "minimum": 1, "maximum": 65535},
    "gateway.service.grpcPort": {"type": "integer", "minimum": 1, "maximum": 65535},
    "gateway.autoscaling.metrics": _LIST,
    "gateway.autoscaling.minReplicas": {"type": "integer", "minimum": 1},
    "gateway.autoscaling.maxReplicas": {"type": "integer", "minimum": 1},
    "gateway.autoscaling.targetCPUUtilizationPercentage": {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
    },
    "gateway.tls.certManager.issuerRef.kind": {"type": "string", "minLength": 1},
    "engineDefaults.workload": {"enum": ["Deployment", "StatefulSet"]},
    "engineDefaults.cache.type": {"enum": ["emptyDir", "claim", "existingClaim"]},
    "engineDefaults.shmSize": _QUANTITY,
    "engineDefaults.startupSeconds": {"type": "integer", "minimum": 1},
    "engineDefaults.autoscaling.minReplicas": {"type": "integer", "minimum": 1},
    "engineDefaults.autoscaling.maxReplicas": {"type": "integer", "minimum": 1},
    "engineDefaults.autoscaling.heldPerReplica": {"type": "integer", "minimum": 1},
    "engineDefaults.keda.maxReplicas": {"type": "integer", "minimum": 1},
    "engineDefaults.keda.queuedPerReplica": {"type": "integer", "minimum": 1},
    "engineDefaults.keda.runningPerReplica": {"type": "integer", "minimum": 1},
    "engineDefaults.keda.pollingInterval": {"type": "integer", "minimum": 1},
    "gateway.startupSeconds": {"type": "integer", "minimum": 1},
    "valkey.terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
    "valkey.passwordGeneration": {"type": "integer", "minimum": 1},
    "valkey.maxmemory": {"type": "string", "pattern": "^[0-9]+(b|k|kb|m|mb|g|gb)?$"},
    "externalRedis.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "tests.maxTokens": {"type": "integer", "minimum": 8},
    "tests.timeoutSeconds": {"type": "integer", "minimum": 10},
}
"""What one value is."""


def text() -> str:
    """The file's content."""
    tree, values = read()
    return json.dumps(build(tree, values), indent=2, ensure_ascii=False) + "\n"


def build(tree: Tree, values: list[Value]) -> Schema:
    """The whole schema."""
    words = {value.path: value.text for value in values}
    root = _object("", tree, words)
    engine: Schema = root["properties"]["engineDefaults"]
    model = copy.deepcopy(engine)
    model["type"] = ["object", "null"]
    model["description"] = "A model. null takes one away that another values file has."
    model["required"] = ["artifact"]
    model["properties"] |= {
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "artifact": {
            "description": "pkg://package/file, hf://org/name@revision or pvc://claim/path",
            "type": "string",
            "pattern": (
                r"^(pkg://[A-Za-z_]\w*/[^/].*"
                r"|hf://[\w.-]+/[\w.-]+(@[\w.-]+)?"
                r"|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/.+)$"
            ),
        },
        "sha256": {"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"},
    }
    root["properties"]["models"] = {
        "description": words["models"],
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {_NAME: model},
    }
    # Not ours alone: a chart that includes this one may have values of its own there.
    root["properties"]["global"]["additionalProperties"] = True
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Headrace"} | root


def _object(path: str, tree: Tree, words: Mapping[str, str]) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": {}}
    for key, default in tree.items():
        inner = f"{path}.{key}".lstrip(".")
        schema = _one(inner, key, default, words)
        if words.get(inner):
            schema = {"description": words[inner]} | schema
        made["properties"][key] = schema
    return made


def _one(path: str, key: str, default: object, words: Mapping[str, str]) -> Schema:
    settings = _settings_at(path)
    if settings is not None:
        return settings
    known = BY_PATH.get(path) or BY_KEY.get(key)
    if known is not None:
        return copy.deepcopy(dict(known))
    match default:
        case dict():
            return _object(path, cast(Tree, default), words)
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer", "minimum": 0}
        case str():
            return {"type": "string"}
        case _:
            raise SystemExit(f"values.yaml: {path}: chartgen.schema must say what it is")


def _settings_at(path: str) -> Schema | None:
    match path:
        case "settings":
            return _settings(GatewaySettings, only=COMMON)
        case "gateway.settings":
            return _settings(GatewaySettings, without=OURS_GATEWAY)
        case "engineDefaults.settings":
            return _settings(EngineSettings, without=OURS_ENGINE)
        case _:
            return None


def _settings(
    cls: type[Settings], *, only: tuple[str, ...] = (), without: frozenset[str] = frozenset()
) -> Schema:
    """A service's settings, as they may stand in values."""
    made = cast(Schema, json.loads(json.dumps(cls.model_json_schema(), default=str)))
    properties: Schema = {}
    for name, schema in cast(Schema, made["properties"]).items():
        if name in without or (only and name not in only):
            continue
        for noise in ("title", "unit", "default"):
            schema.pop(noise, None)
        schema["description"] = " ".join(schema.get("description", "").split())
        properties[name] = schema
    return {"type": "object", "additionalProperties": False, "properties": properties}
