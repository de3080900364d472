"""The chart as it comes, with the small model on the CPU and its network policies held: installed,
asked, upgraded.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from typing import Any

import httpx
import pytest
from support.kubernetes import Cluster, Release, until
from support.policies import enforced, reaches
from support.timings import Timings

pytestmark = pytest.mark.timeout(900)

VALUES: dict[str, Any] = {
    # No more than that two cores hold it, and that nobody makes volumes here.
    "gateway": {
        "service": {"type": "NodePort"},
        "resources": {"requests": {"cpu": "100m"}},
        "settings": {"drain_notice_s": 2},
    },
    "engineDefaults": {"resources": {"requests": {"cpu": "500m"}}},
    "valkey": {"persistence": {"enabled": False}},
}


@pytest.fixture(scope="module")
def release(cluster: Cluster, timings: Timings) -> Generator[Release]:
    """By the older helm, as half of the people have it."""
    made = Release(cluster, "headrace-cpu", VALUES, helm=3)
    cluster.make_namespace(made.namespace)
    try:
        with enforced(cluster, made.namespace):
            made.install()
            timings("helm install --wait: the chart's defaults, CPU", made.took_s["install"])
            yield made
    finally:
        made.uninstall()


def test_the_defaults_serve_the_small_model(release: Release) -> None:
    told = release.test()
    for what in ("key", "stream", "cancel", "resum", "limit", "metrics"):
        assert what in told.lower(), told


@pytest.fixture
def stranger(release: Release) -> Generator[str]:
    """A pod that is none of the chart's, of another name each time."""
    name = f"stranger-{time.time_ns()}"
    sleep = ["python3", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]
    image = ("--image=headrace-cli:0.1.0", "--restart=Never")
    release.kubectl("run", name, *image, "--command", "--", *sleep)
    yield name
    release.kubectl("delete", "pod", name, "--wait=false")


def test_a_stranger_reaches_gateways_and_metrics_and_not_the_server(
    release: Release, stranger: str
) -> None:
    release.kubectl("wait", f"pod/{stranger}", "--for=condition=Ready", "--timeout=110s")
    # Whoever holds policies learns a moment later that there is a new pod.
    for host, port in (("headrace", 8000), ("headrace-engines", 9100)):
        until(partial(reaches, release, stranger, host, port), f"does not reach {host}:{port}")
    assert not reaches(release, stranger, "headrace-valkey", 6379)


def test_an_upgrade_of_everything_keeps_key_and_answers(release: Release, timings: Timings) -> None:
    before = answer(release)
    changed = {"podAnnotations": {"headrace.test/rolled": "yes"}}
    release.upgrade({"gateway": changed, "engineDefaults": changed})
    timings("helm upgrade --wait: gateways and the CPU engine", release.took_s["upgrade"])
    assert answer(release) == before


def answer(release: Release) -> str:
    """What the model says, by greedy choice, to the key that the chart has made."""
    asked = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": "Name three rivers."}],
        "temperature": 0,
        "max_tokens": 16,
    }
    # The proxy learns a moment late that a gateway is gone, and leads a connection there.
    with httpx.Client(transport=httpx.HTTPTransport(retries=5), timeout=120) as http:
        found = http.post(
            f"{release.url}/v1/chat/completions",
            json=asked,
            headers={"Authorization": f"Bearer {release.api_key}"},
        )
    assert found.status_code == 200, found.text
    text: str = found.json()["choices"][0]["message"]["content"]
    assert len(text.split()) > 3
    return text
