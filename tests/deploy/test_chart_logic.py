"""The chart's logic: what the documents hold."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, cast

import pytest
import yaml
from chartgen import images
from containers.cache import ROOT
from support.chart import (
    CHART,
    CI_FILES,
    OLDEST,
    PKG,
    Doc,
    engine,
    one,
    pods,
    render,
    rendered,
    settings_of,
)

EXAMPLES = {file.name.removesuffix("-values.yaml"): file for file in CI_FILES}
GATEWAY, SMALL = "rel-headrace-gateway", "rel-headrace-smollm2-135m-instruct"
CUDA = {"settings": {"executor": "cuda"}}
ENGINE = "rel-headrace-m"


def every_pod() -> list[tuple[str, Doc]]:
    return [
        (f"{name} of {example}", pod)
        for example, file in EXAMPLES.items()
        for name, pod in pods(rendered(file))
    ]


def test_every_pod_satisfies_pod_security_restricted() -> None:
    checked = 0
    for name, pod in every_pod():
        shared = pod["securityContext"]
        assert shared["runAsNonRoot"] is True, name
        assert shared["runAsUser"] > 0, name
        assert shared["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not pod.get("hostNetwork"), name
        assert not pod.get("hostPID"), name
        allowed = {"configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim"}
        assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"]), name
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["readOnlyRootFilesystem"] is True, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name
            assert container["resources"]["requests"]["memory"], name
            assert container["resources"]["limits"]["memory"], name
            checked += 1
    assert checked > 25


def test_no_pod_has_a_token_or_service_links_and_each_component_its_account() -> None:
    for name, pod in every_pod():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert pod["serviceAccountName"].startswith("rel-headrace-"), name
    accounts = [doc for doc in rendered(EXAMPLES["minimal"]) if doc["kind"] == "ServiceAccount"]
    assert len(accounts) == 4
    assert all(doc["automountServiceAccountToken"] is False for doc in accounts)


def test_every_port_says_its_protocol() -> None:
    for file in CI_FILES:
        docs = rendered(file)
        ports = [
            port
            for _, pod in pods(docs)
            for each in pod["containers"]
            for port in each.get("ports", [])
        ]
        ports += [port for doc in docs if doc["kind"] == "Service" for port in doc["spec"]["ports"]]
        assert ports
        assert all(port["protocol"] == "TCP" for port in ports)


def test_no_object_lacks_its_namespace_or_labels() -> None:
    for doc in rendered(EXAMPLES["multi-model"]):
        meta = doc["metadata"]
        assert meta["namespace"] == "ns", meta["name"]
        assert meta["labels"]["app.kubernetes.io/instance"] == "rel", meta["name"]
        assert meta["labels"]["app.kubernetes.io/version"], meta["name"]


def test_grace_follows_from_the_drain_settings() -> None:
    docs = render(
        {
            "gateway": {"settings": {"drain_notice_s": 7.5, "drain_s": 100}},
            "engineDefaults": {"settings": {"drain_s": 200}},
            "models": {"m": {"artifact": PKG}, "n": {"artifact": PKG, "settings": {"drain_s": 9}}},
        }
    )
    grace = {name: pod["terminationGracePeriodSeconds"] for name, pod in pods(docs)}
    assert grace[f"Deployment/{GATEWAY}"] == 118
    assert grace[f"Deployment/{ENGINE}"] == 215
    assert grace["Deployment/rel-headrace-n"] == 24
    more = render({"gateway": {"terminationGracePeriodSeconds": 300}})
    assert dict(pods(more))[f"Deployment/{GATEWAY}"]["terminationGracePeriodSeconds"] == 300


def test_the_guide_says_what_the_defaults_ask_for() -> None:
    docs = rendered(EXAMPLES["minimal"])
    cores, mebibytes = 0.0, 0
    for doc in docs:
        if doc["kind"] in ("Deployment", "StatefulSet"):
            for container in doc["spec"]["template"]["spec"]["containers"]:
                asked = container["resources"]["requests"]
                cpu, memory = asked["cpu"], asked["memory"]
                each = int(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
                cores += doc["spec"]["replicas"] * each
                unit = {"Mi": 1, "Gi": 1024}[memory[-2:]]
                mebibytes += doc["spec"]["replicas"] * int(memory[:-2]) * unit
    words = f"{cores:g} cores and {mebibytes / 1024:g} GiB of memory"
    assert words in (ROOT / "docs/guides/kubernetes.md").read_text()


def test_settings_are_one_file_and_a_change_of_it_replaces_the_pods() -> None:
    before, after = render(), render({"settings": {"log_level": "debug"}})
    for name in (GATEWAY, SMALL):
        service = "gateway" if name == GATEWAY else "engine"
        assert "log_level" not in settings_of(before, name)[service]
        assert settings_of(after, name)[service]["log_level"] == "debug"
        sums = [
            one(docs, "Deployment", name)["spec"]["template"]["metadata"]["annotations"]
            for docs in (before, after)
        ]
        assert sums[0]["checksum/settings"] != sums[1]["checksum/settings"]


def test_a_models_own_values_win_over_the_defaults_and_these_over_the_common_ones() -> None:
    docs = render(
        {
            "settings": {"log_level": "warning", "resume_grace_s": 20},
            "engineDefaults": {"settings": {"max_batch": 8, "log_level": "info"}, "replicas": 2},
            "models": {
                "a": {"artifact": PKG, "settings": {"max_batch": 16}},
                "b": {"artifact": PKG, "name": "org/B", "replicas": 5},
                "gone": None,
                "off": {"artifact": PKG, "enabled": False},
            },
        }
    )
    engines = [
        doc for doc in docs if doc["kind"] == "Deployment" and doc["metadata"]["name"] != GATEWAY
    ]
    assert {doc["metadata"]["name"]: doc["spec"]["replicas"] for doc in engines} == {
        "rel-headrace-a": 2,
        "rel-headrace-b": 5,
    }
    first = settings_of(docs, "rel-headrace-a")["engine"]
    assert (first["max_batch"], first["log_level"], first["model_name"]) == (16, "info", "a")
    assert first["resume_grace_s"] == settings_of(docs, GATEWAY)["gateway"]["resume_grace_s"] == 20
    assert settings_of(docs, "rel-headrace-b")["engine"]["model_name"] == "org/B"


def test_secrets_are_files_and_passwords_stand_hashed_in_the_users_list() -> None:
    docs = render()
    for name, pod in pods(docs):
        for container in pod["containers"]:
            for variable in container.get("env", []):
                assert "secretKeyRef" not in str(variable), name
    secret = one(docs, "Secret", "rel-headrace-valkey")
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    users = dict(
        line.removeprefix("user ").split(" ", 1) for line in data["users.acl"].splitlines()
    )
    assert set(users) == {"default", "probe", "gateway", "engine", "autoscaler"}
    for user in ("gateway", "engine", "autoscaler"):
        password = data[f"{user}-password"]
        assert len(password) == 40
        assert hashlib.sha256(password.encode()).hexdigest() in users[user]
        assert password not in data["users.acl"]
    assert users["default"].startswith("off ")
    for name in ("rel-headrace-valkey", "rel-headrace-auth"):
        kept = one(docs, "Secret", name)["metadata"]["annotations"]
        assert kept == {"helm.sh/resource-policy": "keep"}
    # What the cluster has is written again: a template cannot be asked here, its source can.
    for source in ("valkey/secret.yaml", "secret-auth.yaml"):
        assert 'lookup "v1" "Secret"' in (CHART / "templates" / source).read_text()


def test_new_passwords_replace_the_pods_that_use_them_and_no_others() -> None:
    def generations(values: dict[str, Any]) -> dict[str, str | None]:
        return {
            doc["metadata"]["name"]: doc["spec"]["template"]["metadata"]["annotations"].get(
                "headrace.io/password-generation"
            )
            for doc in render(values)
            if doc["kind"] in ("Deployment", "StatefulSet")
        }

    everyone = (GATEWAY, SMALL, "rel-headrace-valkey")
    assert generations({}) == dict.fromkeys(everyone, "1")
    assert generations({"valkey": {"passwordGeneration": 2}}) == dict.fromkeys(everyone, "2")
    named = {"valkey": {"existingSecret": "theirs", "passwordGeneration": 2}}
    assert generations(named) == dict.fromkeys(everyone)


def test_secrets_that_are_named_are_not_made() -> None:
    docs = render({"auth": {"existingSecret": "mine"}, "valkey": {"existingSecret": "theirs"}})
    assert not [doc for doc in docs if doc["kind"] == "Secret"]
    volumes = dict(pods(docs))[f"Deployment/{GATEWAY}"]["volumes"]
    assert "mine" in str(volumes)
    assert "theirs" in str(volumes)


def test_weights_come_from_the_image_a_claim_or_the_hub() -> None:
    docs = rendered(EXAMPLES["multi-model"])
    found = dict(pods(docs))
    small = found["Deployment/rel-headrace-small"]
    assert "initContainers" not in small
    assert settings_of(docs, "rel-headrace-small")["engine"]["model"] == PKG
    chat = found["Deployment/rel-headrace-chat"]
    (loader,) = chat["initContainers"]
    assert loader["args"] == ["fetch", "hf://Qwen/Qwen2.5-7B-Instruct@main"]
    mounts = [each["volumeMounts"] for each in (loader, chat["containers"][0])]
    assert all("/var/cache/headrace" in str(mount) for mount in mounts)
    offline = {each["name"]: each.get("value") for each in chat["containers"][0]["env"]}
    assert offline["HF_HUB_OFFLINE"] == "1"
    large = found["Deployment/rel-headrace-large"]
    assert settings_of(docs, "rel-headrace-large")["engine"]["model"] == "/models/llama-3.1-8b"
    (claim,) = [each for each in large["volumes"] if each["name"] == "models"]
    assert claim["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}


def test_a_gpu_is_one_resource_and_brings_its_image() -> None:
    pod = dict(pods(rendered(EXAMPLES["gpu"])))["StatefulSet/rel-headrace-qwen3-8b"]
    (container,) = pod["containers"]
    for side in ("limits", "requests"):
        assert container["resources"][side]["nvidia.com/mig-3g.40gb"] == "1"
    assert container["image"] == "headrace-engine:0.1.0-cuda"
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["tolerations"]
    assert pod["nodeSelector"]
    assert pod["priorityClassName"] == "inference"
    (shm,) = [each for each in pod["volumes"] if each["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800


def test_amounts_are_text_as_old_clusters_want_them() -> None:
    amounts = {"requests": {"cpu": 0.5, "memory": 2147483648}, "limits": {"memory": "3Gi"}}
    gpu = {**CUDA, "accelerator": {"resource": "nvidia.com/gpu"}, "shmSize": 67108864}
    for values in ({"gateway": {"resources": amounts}}, engine(resources=amounts, **gpu)):
        for _, pod in pods(render(values)):
            for container in (*pod.get("initContainers", []), *pod["containers"]):
                for side in container["resources"].values():
                    assert all(isinstance(amount, str) for amount in side.values())
            for volume in pod["volumes"]:
                assert isinstance(volume.get("emptyDir", {}).get("sizeLimit", ""), str)
    pod = dict(pods(render(engine(resources=amounts, **gpu))))[f"Deployment/{ENGINE}"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "0.5", "memory": "2147483648", "nvidia.com/gpu": "1"},
        "limits": {"memory": "3Gi", "nvidia.com/gpu": "1"},
    }


def test_engines_of_a_stateful_set_have_a_name_and_a_claim_each() -> None:
    docs = rendered(EXAMPLES["gpu"])
    found = one(docs, "StatefulSet", "rel-headrace-qwen3-8b")["spec"]
    assert found["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    assert found["serviceName"] == one(docs, "Service", "rel-headrace-engines")["metadata"]["name"]
    assert settings_of(docs, "rel-headrace-qwen3-8b")["engine"]["sole_name"] is True


def test_a_new_engine_of_either_workload_stays_ready_before_the_next_is_replaced() -> None:
    for kind in ("Deployment", "StatefulSet"):
        values = engine(workload=kind, minReadySeconds=7)
        assert one(render(values), kind, ENGINE)["spec"]["minReadySeconds"] == 7
    # The oldest cluster has no such field of a StatefulSet, and refuses what it does not know.
    old = one(render(values, kube=OLDEST), "StatefulSet", ENGINE)["spec"]
    assert "minReadySeconds" not in old


def test_engines_give_way_first_and_gateways_last() -> None:
    docs = rendered(EXAMPLES["minimal"])
    roll = {
        name: one(docs, "Deployment", name)["spec"]["strategy"]["rollingUpdate"]
        for name in (GATEWAY, SMALL)
    }
    assert roll[GATEWAY] == {"maxSurge": 1, "maxUnavailable": 0}
    assert roll[SMALL] == {"maxSurge": 0, "maxUnavailable": 1}


def test_who_scales_decides_the_number_alone() -> None:
    docs = rendered(EXAMPLES["cpu"])
    for name in (GATEWAY, "rel-headrace-smollm2"):
        assert "replicas" not in one(docs, "Deployment", name)["spec"]
        scaler = one(docs, "HorizontalPodAutoscaler", name)["spec"]
        assert scaler["scaleTargetRef"]["name"] == name
    many = rendered(EXAMPLES["multi-model"])
    assert "replicas" not in one(many, "Deployment", "rel-headrace-large")["spec"]
    scaled = one(many, "ScaledObject", "rel-headrace-large")["spec"]
    assert scaled["minReplicaCount"] == 0
    lists = {each["metadata"]["listName"] for each in scaled["triggers"]}
    assert lists == {"hr:{large}:queued", "hr:{large}:expiries"}
    assert settings_of(many, GATEWAY)["gateway"]["scale_from_zero"] is True
    assert "scale_from_zero" not in settings_of(docs, GATEWAY)["gateway"]


def test_autoscalers_ask_for_what_their_adapters_serve() -> None:
    more = {"type": "Pods", "pods": {"metric": {"name": "x"}, "target": {"averageValue": "3"}}}
    docs = render(
        {
            "gateway": {"autoscaling": {"enabled": True, "metrics": [more]}},
            **engine(workload="StatefulSet", autoscaling={"enabled": True, "heldPerReplica": 9}),
        }
    )
    cpu, added = one(docs, "HorizontalPodAutoscaler", GATEWAY)["spec"]["metrics"]
    assert cpu["resource"]["name"] == "cpu"
    assert added == more
    found = one(docs, "HorizontalPodAutoscaler", ENGINE)["spec"]
    assert found["scaleTargetRef"]["kind"] == "StatefulSet"
    (held,) = found["metrics"]
    name = held["pods"]["metric"]["name"]
    assert held["pods"]["target"] == {"type": "AverageValue", "averageValue": "9"}
    assert f"`{name}`" in (ROOT / "docs/reference/metrics.md").read_text()


def test_a_server_of_ones_own_is_reached_as_it_wants() -> None:
    docs = rendered(EXAMPLES["external-redis"])
    gateway = settings_of(docs, GATEWAY)["gateway"]
    assert gateway["redis_url"] == "rediss://headrace-gateway@redis.example.org:6380/0"
    assert gateway["redis_ca_file"] == "/etc/headrace/redis/ca.crt"
    assert not [doc for doc in docs if doc["metadata"]["name"] == "rel-headrace-valkey"]
    engine_file = settings_of(docs, "rel-headrace-small")["engine"]
    assert engine_file["redis_url"].startswith("rediss://headrace-engine@")
    server = {"host": "h", "tls": {"enabled": True, "clientSecret": "ours"}}
    known = render({"valkey": {"enabled": False}, "externalRedis": server})
    assert settings_of(known, GATEWAY)["gateway"]["redis_key_file"] == "/etc/headrace/redis/tls.key"
    assert "ours" in str(dict(pods(known))[f"Deployment/{GATEWAY}"]["volumes"])
    watched = settings_of(rendered(EXAMPLES["sentinel"]), GATEWAY)["gateway"]["redis_url"]
    assert watched.startswith("redis+sentinel://sentinel-0.redis.svc:26379,sentinel-1.")
    assert watched.endswith("/headrace/0")


def test_an_autoscaler_shows_the_server_what_engines_show_it() -> None:
    """Parameters that KEDA's scaler of Redis lists reads from a TriggerAuthentication."""
    server = {
        "host": "h",
        "existingSecret": "passwords",
        "engineUsername": "e",
        "tls": {"enabled": True, "caSecret": {"name": "ca"}, "clientSecret": "ours"},
    }
    outside = {"valkey": {"enabled": False}, "externalRedis": server}
    docs = render({**engine(keda={"enabled": True}), **outside})
    given = one(docs, "TriggerAuthentication", "rel-headrace-autoscaler")["spec"]["secretTargetRef"]
    assert {each["parameter"]: (each["name"], each["key"]) for each in given} == {
        "username": ("rel-headrace-autoscaler", "username"),
        "password": ("passwords", "engine-password"),
        "ca": ("ca", "ca.crt"),
        "cert": ("ours", "tls.crt"),
        "key": ("ours", "tls.key"),
    }
    for trigger in one(docs, "ScaledObject", ENGINE)["spec"]["triggers"]:
        assert trigger["authenticationRef"] == {"name": "rel-headrace-autoscaler"}
        assert trigger["metadata"]["enableTLS"] == "true"


def test_network_policies_deny_all_and_allow_who_must() -> None:
    docs = rendered(EXAMPLES["multi-model"])
    policies = {
        doc["metadata"]["name"]: doc["spec"] for doc in docs if doc["kind"] == "NetworkPolicy"
    }
    deny = policies["rel-headrace-default-deny"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert set(deny) == {"podSelector", "policyTypes"}
    selector = deny["podSelector"]["matchLabels"].items()
    for doc in docs:
        if doc["kind"] in ("Deployment", "StatefulSet"):
            assert selector <= doc["spec"]["template"]["metadata"]["labels"].items()
        if doc["kind"] == "Pod":
            assert selector <= doc["metadata"]["labels"].items()
    valkey = policies["rel-headrace-valkey"]["ingress"][0]["from"]
    components = [
        each["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for each in valkey
        if "podSelector" in each
    ]
    assert components == ["gateway", "engine", "test"]
    tested = policies["rel-headrace-test"]["egress"]
    assert [rule["ports"][0]["port"] for rule in tested] == [9100, 8000]
    loaders = [name for name in policies if name.endswith("-loader")]
    assert loaders == ["rel-headrace-chat-loader"]
    assert policies[loaders[0]]["egress"][0]["ports"] == [{"port": 443, "protocol": "TCP"}]
    narrowed = render(
        {
            "models": {
                "m": {
                    "artifact": "hf://o/n@main",
                    "loader": {"endpoint": "http://hub:8080", "cidrs": ["10.1.0.0/16"]},
                }
            }
        }
    )
    [rule] = one(narrowed, "NetworkPolicy", "rel-headrace-m-loader")["spec"]["egress"]
    assert rule == {
        "ports": [{"port": 8080, "protocol": "TCP"}],
        "to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
    }
    traced = {
        doc["metadata"]["name"]: doc["spec"]
        for doc in rendered(EXAMPLES["cpu"])
        if doc["kind"] == "NetworkPolicy"
    }
    ports = [rule["ports"][0]["port"] for rule in traced["rel-headrace-clients"]["egress"]]
    assert ports == [53, 6379, 4317]


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("http://collector", 4317),
        ("http://collector:4318/", 4318),
        ("collector:55680", 55680),
        ("http://user:1234@collector:4319", 4319),
        ("http://[fd00::1]:4320", 4320),
        ("http://[fd00::1]", 4317),
    ],
)
def test_a_policy_opens_the_port_that_an_address_names(address: str, port: int) -> None:
    docs = render({"settings": {"otlp_endpoint": address}})
    egress = one(docs, "NetworkPolicy", "rel-headrace-clients")["spec"]["egress"]
    assert egress[-1]["ports"] == [{"port": port, "protocol": "TCP"}]


@pytest.mark.parametrize(("endpoint", "port"), [("http://hub", 80), ("https://hub/x:8", 443)])
def test_a_loader_reaches_the_port_of_its_hub(endpoint: str, port: int) -> None:
    docs = render({"models": {"m": {"artifact": "hf://o/n", "loader": {"endpoint": endpoint}}}})
    [rule] = one(docs, "NetworkPolicy", "rel-headrace-m-loader")["spec"]["egress"]
    assert rule == {"ports": [{"port": port, "protocol": "TCP"}]}


def test_tls_reaches_probes_monitors_and_the_test() -> None:
    docs = rendered(EXAMPLES["cpu"])
    gateway = settings_of(docs, GATEWAY)["gateway"]
    assert gateway["tls_cert_file"] == "/etc/headrace/tls/tls.crt"
    (container,) = one(docs, "Deployment", GATEWAY)["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    monitor = one(docs, "PodMonitor", GATEWAY)["spec"]["podMetricsEndpoints"][0]
    assert monitor["scheme"] == "https"
    certificate = one(docs, "Certificate", "rel-headrace")["spec"]
    assert monitor["tlsConfig"]["serverName"] in certificate["dnsNames"]
    assert certificate["secretName"] == "rel-headrace-tls"
    assert monitor["tlsConfig"]["ca"]["secret"] == {"name": "rel-headrace-tls", "key": "ca.crt"}
    test = one(docs, "Pod", "rel-headrace-test")["spec"]["containers"][0]
    assert any(each.startswith("--url=https://") for each in test["args"])
    assert any(each["name"] == "SSL_CERT_FILE" for each in test["env"])


def test_an_authority_that_everybody_knows_is_not_looked_for_in_the_secret() -> None:
    docs = render(
        {
            "gateway": {"tls": {"enabled": True, "secretName": "public", "caKey": ""}},
            "metrics": {"serviceMonitor": {"enabled": True}},
        }
    )
    test = one(docs, "Pod", "rel-headrace-test")["spec"]
    assert "SSL_CERT_FILE" not in str(test)
    assert "public" not in str(test)
    [endpoint] = one(docs, "ServiceMonitor", GATEWAY)["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == {"serverName": "rel-headrace.ns.svc"}


def test_monitors_show_gateways_a_key_where_one_is_asked_for() -> None:
    for kind, endpoints in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        switch = kind[0].lower() + kind[1:]
        docs = render(
            {
                "gateway": {"settings": {"metrics_need_key": True}},
                "metrics": {switch: {"enabled": True}, "keySecret": {"name": "scraper"}},
            }
        )
        [gateway] = one(docs, kind, GATEWAY)["spec"][endpoints]
        shown = {"type": "Bearer", "credentials": {"name": "scraper", "key": "api-key"}}
        assert gateway["authorization"] == shown
        [engine] = one(docs, kind, "rel-headrace-engine")["spec"][endpoints]
        assert "authorization" not in engine


def test_routes_lead_to_both_apis_and_let_streams_last() -> None:
    docs = rendered(EXAMPLES["multi-model"])
    (http,) = one(docs, "HTTPRoute", "rel-headrace-http")["spec"]["rules"]
    assert http["backendRefs"] == [{"name": "rel-headrace", "port": 8000}]
    assert http["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    (grpc,) = one(docs, "GRPCRoute", "rel-headrace-grpc")["spec"]["rules"]
    assert grpc == {"backendRefs": [{"name": "rel-headrace", "port": 9000}]}


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_an_object_points_at_is_there(example: str) -> None:
    """Backends of routes and ingresses, targets of scalers, pods of services, budgets and monitors."""
    docs = rendered(EXAMPLES[example])
    services = {doc["metadata"]["name"]: doc["spec"] for doc in docs if doc["kind"] == "Service"}
    templates = [doc["spec"]["template"] for doc in docs if "template" in doc.get("spec", {})]

    def chosen(labels: Doc) -> list[Doc]:
        """Pods that have these labels."""
        return [
            each["spec"]
            for each in templates
            if labels.items() <= each["metadata"]["labels"].items()
        ]

    def has_port(pod: Doc, name: str) -> bool:
        ports = [port for each in pod["containers"] for port in each.get("ports", [])]
        return name in [port["name"] for port in ports]

    def backends(doc: Doc) -> list[tuple[str, int | str]]:
        rules = doc["spec"]["rules"]
        if doc["kind"] == "Ingress":
            found = [path["backend"]["service"] for rule in rules for path in rule["http"]["paths"]]
            return [(each["name"], *each["port"].values()) for each in found]
        return [(each["name"], each["port"]) for rule in rules for each in rule["backendRefs"]]

    for spec in services.values():
        found = chosen(spec["selector"])
        assert found
        assert all(has_port(pod, port["targetPort"]) for port in spec["ports"] for pod in found)
    for doc in docs:
        spec = doc.get("spec", {})
        match doc["kind"]:
            case "Ingress" | "HTTPRoute" | "GRPCRoute":
                assert backends(doc)
                for name, port in backends(doc):
                    known = [
                        each[key] for each in services[name]["ports"] for key in ("name", "port")
                    ]
                    assert port in known
            case "HorizontalPodAutoscaler" | "ScaledObject":
                assert one(docs, spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
            case "PodDisruptionBudget":
                assert chosen(spec["selector"]["matchLabels"])
            case "PodMonitor":
                found = chosen(spec["selector"]["matchLabels"])
                assert found
                for port in spec["podMetricsEndpoints"]:
                    assert all(has_port(pod, port["port"]) for pod in found)
            case "ServiceMonitor":
                wanted = spec["selector"]["matchLabels"].items()
                found = [
                    each["spec"]
                    for each in docs
                    if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
                ]
                assert found
                for port in spec["endpoints"]:
                    named = [[each["name"] for each in one["ports"]] for one in found]
                    assert all(port["port"] in names for names in named)
            case _:
                pass


def test_every_image_is_in_the_list_for_those_who_carry_them_in() -> None:
    listed = set(images.images((ROOT / "images.txt").read_text()))
    used = {
        container["image"]
        for name, file in EXAMPLES.items()
        if name != "airgap"
        for _, pod in pods(rendered(file))
        for container in (*pod.get("initContainers", []), *pod["containers"])
    }
    assert len(used) == 5
    assert used <= listed


def values_in_guides() -> list[tuple[str, dict[str, Any]]]:
    """Blocks of YAML whose keys are all of the chart."""
    ours = set(yaml.safe_load((CHART / "values.yaml").read_text()))
    found: list[tuple[str, dict[str, Any]]] = []
    for page in sorted((ROOT / "docs/guides").glob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            values = yaml.safe_load(block.replace("sha256:...", f"sha256:{'0' * 64}"))
            if isinstance(values, dict) and ours.issuperset(cast("dict[str, Any]", values)):
                found.append((page.stem, cast("dict[str, Any]", values)))
    return found


@pytest.mark.parametrize(("page", "values"), values_in_guides())
def test_the_chart_takes_the_values_in_the_guides(page: str, values: dict[str, Any]) -> None:
    assert render(values), page


def test_guides_have_values_of_the_chart() -> None:
    assert len(values_in_guides()) >= 3


def test_images_come_from_ones_own_registry_by_digest() -> None:
    images = {
        container["image"]
        for _, pod in pods(rendered(EXAMPLES["airgap"]))
        for container in pod["containers"]
    }
    assert len(images) == 4
    assert all(image.startswith("registry.internal.example/") for image in images)
    assert all("@sha256:" in image for image in images)


def test_further_objects_are_templates() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
    docs = render({"extraObjects": [extra, yaml.safe_dump({**extra, "kind": "Secret"})]})
    assert one(docs, "ConfigMap", "rel-x")
    assert one(docs, "Secret", "rel-x")
