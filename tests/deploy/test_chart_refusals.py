"""One reason for each combination of values that cannot work, which names the key."""

from __future__ import annotations

import re
from typing import Any

import pytest
from headrace_engine.settings import EngineSettings
from support.chart import HELMS, PKG, engine, refusal

CUDA = {"settings": {"executor": "cuda"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "typo": ({"gatway": {}}, "gatway"),
    "typo inside": ({"gateway": {"replica": 3}}, "replica"),
    "typo in a model": (engine(replica=3), "replica"),
    "typo in a setting": ({"gateway": {"settings": {"drain": 3}}}, "drain"),
    "type": ({"gateway": {"replicas": "two"}}, r"gateway[./]replicas"),
    "setting out of bounds": (engine(settings={"max_batch": 0}), "max_batch"),
    "setting that the chart decides": (engine(settings={"redis_url": "x"}), "redis_url"),
    "artifact missing": ({"models": {"m": {}}}, "artifact"),
    "artifact of no known kind": ({"models": {"m": {"artifact": "s3://b/x"}}}, "artifact"),
    "name of a model": ({"models": {"Upper": {"artifact": PKG}}}, "Upper"),
    "digest": ({"images": {"cli": {"digest": "abc"}}}, "digest"),
    "gateway grace": (
        {"gateway": {"terminationGracePeriodSeconds": 74}},
        "gateway.terminationGracePeriodSeconds is 74, .* need 75",
    ),
    "engine grace": (
        engine(terminationGracePeriodSeconds=10),
        "models.m.terminationGracePeriodSeconds is 10, .* needs 75",
    ),
    "no way to update gateways": (
        {"gateway": {"strategy": {"maxSurge": 0, "maxUnavailable": 0}}},
        "gateway.strategy",
    ),
    "no way to update engines": (engine(strategy={"maxUnavailable": 0}), "models.m.strategy"),
    "tls without a certificate": (
        {"gateway": {"tls": {"enabled": True}}},
        "gateway.tls.secretName",
    ),
    "certificate without tls": (
        {"gateway": {"tls": {"certManager": {"enabled": True}}}},
        "gateway.tls.certManager.enabled does nothing",
    ),
    "certificate without issuer": (
        {"gateway": {"tls": {"enabled": True, "certManager": {"enabled": True}}}},
        "issuerRef.name",
    ),
    "gateways between nothing": (
        {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}},
        "gateway.autoscaling.minReplicas is 5",
    ),
    "engines between nothing": (
        engine(keda={"enabled": True, "minReplicas": 5, "maxReplicas": 2}),
        "models.m.keda.minReplicas is 5",
    ),
    "engines of an autoscaler between nothing": (
        engine(autoscaling={"enabled": True, "minReplicas": 5, "maxReplicas": 2}),
        "models.m.autoscaling.minReplicas is 5",
    ),
    "an autoscaler that knows no zero": (
        engine(autoscaling={"enabled": True, "minReplicas": 0}),
        r"autoscaling[./]minReplicas",
    ),
    "engines that can never be full": (
        engine(autoscaling={"enabled": True}, settings={"max_batch": 8}),
        "models.m.autoscaling.heldPerReplica is 16, .*max_batch is 8",
    ),
    "engines that can never be full by default": (
        engine(autoscaling={"enabled": True, "heldPerReplica": EngineSettings().max_batch}),
        f"max_batch is {EngineSettings().max_batch}",
    ),
    "two who scale": (
        engine(autoscaling={"enabled": True}, keda={"enabled": True}),
        "models.m.keda and models.m.autoscaling are both enabled",
    ),
    "one claim for as many as may come": (
        engine(autoscaling={"enabled": True, "maxReplicas": 3}, cache={"type": "claim"}),
        "models.m.cache: 3 engines .* ReadWriteMany",
    ),
    "zero without a queue": (
        {
            **engine(keda={"enabled": True, "minReplicas": 0}),
            "gateway": {"settings": {"scale_from_zero": False}},
        },
        "gateway.settings.scale_from_zero is false",
    ),
    "two servers": ({"externalRedis": {"host": "h"}}, "externalRedis is set and valkey.enabled"),
    "no server": ({"valkey": {"enabled": False}}, "externalRedis.host"),
    "host and sentinels": (
        {
            "valkey": {"enabled": False},
            "externalRedis": {"host": "h", "sentinel": {"nodes": ["s:1"], "service": "x"}},
        },
        "externalRedis.host and externalRedis.sentinel.nodes",
    ),
    "sentinels without a name": (
        {"valkey": {"enabled": False}, "externalRedis": {"sentinel": {"nodes": ["s:1"]}}},
        "externalRedis.sentinel.service is empty",
    ),
    "sentinel without a port": (
        {"valkey": {"enabled": False}, "externalRedis": {"sentinel": {"nodes": ["s"]}}},
        r"sentinel[./]nodes",
    ),
    "certificates without tls": (
        {
            "valkey": {"enabled": False},
            "externalRedis": {"host": "h", "tls": {"caSecret": {"name": "ca"}}},
        },
        "externalRedis.tls.enabled is false",
    ),
    "user without a password": (
        {"valkey": {"enabled": False}, "externalRedis": {"host": "h", "gatewayUsername": "g"}},
        "externalRedis.existingSecret is empty",
    ),
    "cuda without a gpu": (engine(**CUDA), "models.m.settings.executor is cuda"),
    "gpu without cuda": (
        engine(accelerator={"resource": "nvidia.com/gpu"}),
        "models.m.accelerator.resource",
    ),
    "two of one name": (
        {"models": {"a": {"artifact": PKG, "name": "x"}, "b": {"artifact": PKG, "name": "x"}}},
        "models.b.name: x is what models.a serves",
    ),
    "claim without a path": ({"models": {"m": {"artifact": "pvc://weights"}}}, "artifact"),
    "sum of many files": (
        {"models": {"m": {"artifact": "hf://o/n", "sha256": "0" * 64}}},
        "models.m.sha256",
    ),
    "one claim for many": (
        engine(replicas=2, cache={"type": "claim"}),
        "models.m.cache: 2 engines .* ReadWriteMany",
    ),
    "claim that is not named": (
        engine(cache={"type": "existingClaim"}),
        "models.m.cache.existingClaim is empty",
    ),
    "ingress for nobody": ({"ingress": {"enabled": True}}, "ingress.hosts"),
    "route from nowhere": ({"route": {"grpc": {"enabled": True}}}, "route.grpc.parentRefs"),
    "counted twice": (
        {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        "metrics.podMonitor and metrics.serviceMonitor",
    ),
    "monitor without a key": (
        {
            "gateway": {"settings": {"metrics_need_key": True}},
            "metrics": {"podMonitor": {"enabled": True}},
        },
        "gateway.settings.metrics_need_key is true, .* metrics.keySecret.name must",
    ),
    "key for nobody": (
        {"metrics": {"keySecret": {"name": "scraper"}}},
        "metrics.keySecret is set, and gateway.settings.metrics_need_key is not",
    ),
    "monitor that is shut out": (
        {
            "networkPolicy": {"gatewayFrom": [{"podSelector": {}}]},
            "metrics": {"serviceMonitor": {"enabled": True}},
        },
        "networkPolicy.gatewayFrom is set and networkPolicy.metricsFrom is empty",
    ),
    "key that is the pepper": ({"auth": {"pepperKey": "api-key"}}, "auth.pepperKey and .* api-key"),
    "model named as gateways": (
        {"models": {"gateway": {"artifact": PKG}}},
        "models.gateway: .* as those of gateways",
    ),
    "model named as the server": (
        {"models": {"valkey": {"artifact": PKG}}},
        "models.valkey: .* as those of the bundled server",
    ),
    "model named as a dashboard": (
        {"models": {"headrace-engines": {"artifact": PKG}}},
        "models.headrace-engines: .* as those of a dashboard",
    ),
    "models whose names are cut to one": (
        {
            "fullnameOverride": "f" * 40,
            "models": {f"llama-31-8b-{each}": {"artifact": PKG, "name": each} for each in "ab"},
        },
        "models.llama-31-8b-b: .* as those of models.llama-31-8b-a",
    ),
    "test without a key": ({"auth": {"initialKeyKey": ""}}, "auth.initialKeyKey is empty"),
}


@pytest.mark.parametrize("name", HELMS)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_keys_name(case: str, name: str) -> None:
    values, words = REFUSED[case]
    assert_says(refusal(values, name), words)


def assert_says(message: str, words: str) -> None:
    assert re.search(words, " ".join(message.split())), message
