"""docker-compose.yml and what it mounts, as far as that can be known without starting anything."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from containers.cache import ROOT
from containers.chart_tools import BIN, program
from containers.daemon import Daemon
from jsonschema import Draft7Validator

OURS: Final = ("secrets", "valkey", "engine", "engine-gpu", "gateway", "cli")


@pytest.fixture(scope="module")
def config(containers: Daemon) -> dict[str, Any]:
    """The file as compose understands it, with every profile."""
    return json.loads(
        containers.docker(
            *("compose", "--profile", "*", "config", "--format", "json"),
            cwd=ROOT,
        )
    )


def test_the_files_are_well_formed(containers: Daemon) -> None:
    paths = [ROOT / "docker-compose.yml", *ROOT.glob("docker/**/*.y*ml")]
    rules = "{extends: relaxed, rules: {line-length: {max: 120}}}"
    done = subprocess.run(
        [program("charts", "yamllint"), "--strict", "-d", rules, *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    containers.docker("compose", "config", "--quiet", cwd=ROOT)


def test_every_service_is_confined(config: dict[str, Any]) -> None:
    for name, service in config["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("restart") is not None, name
        assert "privileged" not in service, name


def test_what_serves_is_bounded_and_nothing_else_is_published(config: dict[str, Any]) -> None:
    for name, service in config["services"].items():
        if service["restart"] == "unless-stopped":
            assert service["deploy"]["resources"]["limits"]["memory"], name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name
    published = {name for name, service in config["services"].items() if service.get("ports")}
    assert published == {"gateway", "prometheus", "grafana"}


def test_no_folder_of_the_machine_is_mounted(config: dict[str, Any]) -> None:
    for name, service in config["services"].items():
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume", (name, volume)
    for name, file in config["configs"].items():
        assert Path(file["file"]).is_relative_to(ROOT), name
        assert Path(file["file"]).is_file(), name


def test_no_secret_stands_in_the_file(config: dict[str, Any]) -> None:
    for name, service in config["services"].items():
        variables: dict[str, str] = service.get("environment", {})
        for variable in variables:
            if "PASSWORD" in variable or "PEPPER" in variable:
                assert variable.endswith("_FILE"), (name, variable)


def test_images_are_pinned_and_ours_have_one_version(config: dict[str, Any]) -> None:
    version = yaml.safe_load((ROOT / "charts/headrace/Chart.yaml").read_text())["appVersion"]
    for name, service in config["services"].items():
        tag = service["image"].partition(":")[2]
        assert re.match(r"v?\d", tag), name
        if service["image"].startswith("headrace-"):
            assert tag in (version, f"{version}-cuda"), name


def test_services_start_in_order_of_health(config: dict[str, Any]) -> None:
    services = config["services"]
    for name in ("engine", "engine-gpu", "gateway", "cli"):
        assert services[name]["depends_on"]["valkey"]["condition"] == "service_healthy"
    assert (
        services["valkey"]["depends_on"]["secrets"]["condition"] == "service_completed_successfully"
    )


def test_users_of_the_server_may_do_what_they_may_in_the_chart() -> None:
    chart = (ROOT / "charts/headrace/templates/valkey/_acl.tpl").read_text()
    (service,) = re.findall(r'\$service := "([^"]+)"', chart)
    script = (ROOT / "docker/make_secrets.py").read_text()
    values: dict[str, Any] = {"__name__": "made"}
    exec(script.replace("\nmain()\n", "\n"), values)
    for user, rule in values["USERS"].items():
        (line,) = (line for line in chart.splitlines() if line.startswith(f"user {user} "))
        expected = line.partition("}} ")[2].replace("{{ $service }}", service)
        assert rule == expected
    for user in ("default", "probe"):
        (line,) = (line for line in chart.splitlines() if line.startswith(f"user {user} "))
        assert line in script


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    text = (ROOT / "docker/prometheus/prometheus.yml").read_text()
    alerts = ROOT / "charts/headrace/files/alerts.yaml"
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/etc/prometheus/alerts.yaml", str(alerts)))
    done = subprocess.run(
        [BIN / "promtool", "check", "config", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


def test_prometheus_asks_every_service_that_has_metrics(config: dict[str, Any]) -> None:
    settings = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())
    asked = {
        name
        for job in settings["scrape_configs"]
        for found in job["dns_sd_configs"]
        for name in found["names"]
    }
    assert asked == {"gateway", "engine", "engine-gpu"}
    assert asked <= set(config["services"])


def fields(required: tuple[str, ...] = (), **known: Any) -> dict[str, Any]:
    """The JSON schema of a mapping with these fields and no others."""
    return {
        "type": "object",
        "properties": known,
        "required": list(required),
        "additionalProperties": False,
    }


def one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


TEXT: Final = {"type": "string", "minLength": 1}
SWITCH: Final = {"type": "boolean"}
COUNT: Final = {"type": "integer", "minimum": 0}
TIME: Final = {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$"}
ADDRESS: Final = {"type": "string", "pattern": r"^[\w.]+:\d+$"}
NAMES: Final = {"type": "array", "items": TEXT, "minItems": 1}
LISTENS: Final = fields(("endpoint",), endpoint=ADDRESS, max_recv_msg_size_mib=COUNT)
PIPELINE: Final = fields(
    ("receivers", "exporters"), receivers=NAMES, processors=NAMES, exporters=NAMES
)
DOCUMENTED: Final = {
    "otel/collector.yaml": fields(
        ("receivers", "exporters", "service"),
        receivers=fields(otlp=fields(("protocols",), protocols=fields(grpc=LISTENS, http=LISTENS))),
        processors=fields(
            memory_limiter=fields(
                ("check_interval", "limit_mib"),
                check_interval=TIME,
                limit_mib=COUNT,
                spike_limit_mib=COUNT,
                limit_percentage=COUNT,
                spike_limit_percentage=COUNT,
            ),
            batch=fields(timeout=TIME, send_batch_size=COUNT, send_batch_max_size=COUNT),
        ),
        exporters=fields(
            debug=fields(
                verbosity=one_of("basic", "normal", "detailed"),
                sampling_initial=COUNT,
                sampling_thereafter=COUNT,
            )
        ),
        service=fields(
            ("pipelines",),
            telemetry=fields(
                metrics=fields(level=one_of("none", "basic", "normal", "detailed")),
                logs=fields(level=one_of("debug", "info", "warn", "error")),
            ),
            pipelines=fields(traces=PIPELINE, metrics=PIPELINE, logs=PIPELINE),
        ),
    ),
    "grafana/provisioning/dashboards/headrace.yaml": fields(
        ("apiVersion", "providers"),
        apiVersion={"const": 1},
        providers={
            "type": "array",
            "items": fields(
                ("name", "type", "options"),
                name=TEXT,
                orgId=COUNT,
                folder={"type": "string"},
                folderUid=TEXT,
                type=one_of("file"),
                disableDeletion=SWITCH,
                updateIntervalSeconds=COUNT,
                allowUiUpdates=SWITCH,
                options=fields(("path",), path=TEXT, foldersFromFilesStructure=SWITCH),
            ),
        },
    ),
    "grafana/provisioning/datasources/headrace.yaml": fields(
        ("apiVersion", "datasources"),
        apiVersion={"const": 1},
        datasources={
            "type": "array",
            "items": fields(
                ("name", "type", "access"),
                name=TEXT,
                type=one_of("prometheus"),
                uid=TEXT,
                orgId=COUNT,
                url={"type": "string", "pattern": r"^https?://[\w.-]+(:\d+)?$"},
                access=one_of("proxy", "direct"),
                isDefault=SWITCH,
                editable=SWITCH,
                version=COUNT,
                jsonData=fields(
                    timeInterval=TIME,
                    queryTimeout=TIME,
                    httpMethod=one_of("GET", "POST"),
                    manageAlerts=SWITCH,
                ),
            ),
        },
    ),
}
"""Files of ``docker`` for programs that cannot be run here, and what those document of the parts that
are used: the Collector's receivers, processors and exporters of these names, Grafana's provisioning.
"""
FAULTS: Final = [
    ("otel/collector.yaml", "processors.memory_limiter.limit_mb", 400),
    ("otel/collector.yaml", "processors.batch.timeout", 1),
    ("otel/collector.yaml", "exporters.debug.verbosity", "loud"),
    ("otel/collector.yaml", "service.pipelines.trace", {"receivers": ["otlp"]}),
    ("grafana/provisioning/dashboards/headrace.yaml", "providers.0.options.folder", "/x"),
    ("grafana/provisioning/dashboards/headrace.yaml", "providers.0.allowUIUpdates", True),
    ("grafana/provisioning/datasources/headrace.yaml", "datasources.0.access", "server"),
    ("grafana/provisioning/datasources/headrace.yaml", "datasources.0.jsonData.interval", "10s"),
]


def against(name: str, content: Any) -> list[str]:
    """What a file has that its program does not document."""
    validator = cast(Any, Draft7Validator(DOCUMENTED[name]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_file_has_what_its_program_documents(name: str) -> None:
    assert against(name, yaml.safe_load((ROOT / "docker" / name).read_text())) == []


@pytest.mark.parametrize(("name", "path", "value"), FAULTS)
def test_a_fault_in_such_a_file_is_found(name: str, path: str, value: Any) -> None:
    content = yaml.safe_load((ROOT / "docker" / name).read_text())
    *above, last = path.split(".")
    place: Any = content
    for step in above:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value
    assert last in "".join(against(name, content))


def test_the_collector_s_limits_leave_room(config: dict[str, Any]) -> None:
    settings = yaml.safe_load((ROOT / "docker/otel/collector.yaml").read_text())
    limiter = settings["processors"]["memory_limiter"]
    held = int(config["services"]["otel-collector"]["deploy"]["resources"]["limits"]["memory"])
    assert limiter["spike_limit_mib"] < limiter["limit_mib"] < held / (1 << 20)
    for pipeline in settings["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"


def test_the_collector_s_pipelines_name_parts_that_it_has() -> None:
    settings = yaml.safe_load((ROOT / "docker/otel/collector.yaml").read_text())
    for pipeline in settings["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(settings[kind])


def test_grafana_gets_every_board_and_the_source_that_they_name(config: dict[str, Any]) -> None:
    mounted = {
        Path(config["configs"][each["source"]]["file"]): each["target"]
        for each in config["services"]["grafana"]["configs"]
    }
    boards = set((ROOT / "charts/headrace/files/dashboards").glob("*.json"))
    assert boards <= set(mounted)
    provider = yaml.safe_load(
        (ROOT / "docker/grafana/provisioning/dashboards/headrace.yaml").read_text()
    )
    folder = provider["providers"][0]["options"]["path"]
    assert all(mounted[board].startswith(f"{folder}/") for board in boards)
    sources = yaml.safe_load(
        (ROOT / "docker/grafana/provisioning/datasources/headrace.yaml").read_text()
    )
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
