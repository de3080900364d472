"""Network policies of one namespace at work, on a cluster whose network has nobody for that.

A stand-in for what a CNI plugin does: rules of the packet filter on this machine, made of what the
API says of policies and pods, and made anew when that changes. What crosses the bridge of the pods
comes by there after the proxy has put a pod's address in place of a service's, as with real ones;
what a pod asks of the machine itself, its name server among it, is looked at too.
"""

from __future__ import annotations

import ipaddress
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from support.kubernetes import Cluster, Refused, Release

CHAIN: Final = "TEST-POLICY"
BRIDGE: Final = "headrace0"
EVERY_S: Final = 0.5
TRIES: Final = 10
"""An API that is busy may refuse now and then."""

_failed: Final[list[Exception]] = []
"""Of the one that holds policies, since it last could."""

Doc = dict[str, Any]


@contextmanager
def enforced(cluster: Cluster, namespace: str) -> Generator[None]:
    """Holds the namespace's policies while the block runs."""
    over = threading.Event()
    _failed.clear()

    def follow() -> None:
        before = ""
        while not over.is_set():
            try:
                rules = ruleset(cluster, namespace)
                if rules != before:
                    _filter("iptables-restore", "--wait", "--noflush", given=rules)
                    before = rules
                _failed.clear()
            except Exception as error:
                _failed.append(error)
                if len(_failed) == TRIES:
                    return
            over.wait(EVERY_S)

    _filter("iptables-restore", "--wait", "--noflush", given=f"*filter\n:{CHAIN} - [0:0]\nCOMMIT\n")
    for hook in ("FORWARD", "INPUT"):
        _filter("iptables", "--wait", "-I", hook, "-i", BRIDGE, "-j", CHAIN)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for hook in ("FORWARD", "INPUT"):
            _filter("iptables", "--wait", "-D", hook, "-i", BRIDGE, "-j", CHAIN)
        made = _filter("iptables", "--wait", "--list-rules").splitlines()
        chains = [line.split()[1] for line in made if line.startswith(f"-N {CHAIN}")]
        for action in ("-F", "-X"):
            for chain in sorted(chains):
                _filter("iptables", "--wait", action, chain)
    _check_held()


def _check_held() -> None:
    assert len(_failed) < TRIES, _failed


def reaches(release: Release, pod_name: str, host: str, port: int) -> bool:
    """Whether somebody takes a connection of a pod that has Python. That the name is known is taken for
    granted; that policies are held is not.
    """
    _check_held()
    script = (
        "import socket, sys\n"
        f"found = socket.getaddrinfo({host!r}, {port}, type=socket.SOCK_STREAM)\n"
        "try:\n"
        "    socket.create_connection(found[0][4], timeout=3).close()\n"
        "except OSError as error:\n"
        "    sys.exit(f'no way: {error}')\n"
    )
    try:
        release.kubectl("exec", pod_name, "--", "python3", "-c", script)
    except Refused as error:
        if "no way: " not in str(error):
            raise
        return False
    return True


def ruleset(cluster: Cluster, namespace: str) -> str:
    """The chain, for ``iptables-restore``. What a pod neither sends nor gets falls through."""
    asked = cluster.get("pods,namespaces,networkpolicies", "--all-namespaces")
    found: dict[str, list[Doc]] = {"Pod": [], "Namespace": [], "NetworkPolicy": []}
    for each in cast("list[Doc]", asked["items"]):
        found[each["kind"]].append(each)
    pods = [
        pod
        for pod in found["Pod"]
        if pod["status"].get("podIP") and pod["status"]["phase"] in ("Pending", "Running")
    ]
    spaces = {
        each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in found["Namespace"]
    }
    policies: list[Doc] = [
        each["spec"]
        for each in found["NetworkPolicy"]
        if each["metadata"]["namespace"] == namespace
    ]
    # A chain for each pod and direction lets pass what a policy allows, and refuses the rest.
    lines = [f"*filter\n:{CHAIN} - [0:0]"]
    lines.append(f"-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN")
    for pod in pods:
        if pod["metadata"]["namespace"] != namespace:
            continue
        ours = [each for each in policies if _selects(each["podSelector"], pod)]
        for direction, own, other in (("Egress", "-s", "-d"), ("Ingress", "-d", "-s")):
            held = [each for each in ours if direction in each["policyTypes"]]
            if not held:
                continue
            name = f"{CHAIN}-{direction[0]}-{pod['metadata']['uid'][:13]}"
            lines[0] += f"\n:{name} - [0:0]"
            lines.append(f"-A {CHAIN} {own} {pod['status']['podIP']} -j {name}")
            for policy in held:
                for rule in policy.get(direction.lower(), []):
                    peers = _peers(rule, direction, pods, spaces, namespace)
                    for peer, target in peers:
                        to = f"{other} {peer} " if peer else ""
                        for port in _ports(rule, target if direction == "Egress" else pod):
                            lines.append(f"-A {name} {to}{port}-j RETURN")
            lines.append(f"-A {name} -j REJECT")
    return "\n".join([*lines, "COMMIT", ""])


def _peers(
    rule: Doc, direction: str, pods: list[Doc], spaces: Mapping[str, Doc], namespace: str
) -> list[tuple[str, Doc | None]]:
    """Addresses that a rule names, and the pod of each that is one; nothing stands for anybody."""
    named = cast("list[Doc]", rule.get("to" if direction == "Egress" else "from") or [])
    if not named:
        return [("", None)]
    peers: list[tuple[str, Doc | None]] = []
    for each in named:
        if "ipBlock" in each:
            assert "except" not in each["ipBlock"], "exceptions are not looked at here"
            peers.append((str(ipaddress.ip_network(each["ipBlock"]["cidr"])), None))
            continue
        for pod in pods:
            space = pod["metadata"]["namespace"]
            inside = (
                _matches(each["namespaceSelector"], spaces.get(space, {}))
                if "namespaceSelector" in each
                else space == namespace
            )
            if inside and _selects(each.get("podSelector", {}), pod):
                peers.append((pod["status"]["podIP"], pod))
    return peers


def _ports(rule: Doc, pod: Doc | None) -> list[str]:
    """What the filter wants to see of each port; names are those of the receiving pod."""
    asked = cast("list[Doc]", rule.get("ports") or [])
    if not asked:
        return [""]
    matches: list[str] = []
    for each in asked:
        protocol, port = each.get("protocol", "TCP").lower(), each["port"]
        if isinstance(port, str):
            assert pod is not None, f"a port named {port} of nobody in particular"
            port = next(
                one["containerPort"]
                for container in pod["spec"]["containers"]
                for one in container.get("ports", [])
                if one.get("name") == port
            )
        matches.append(f"-p {protocol} --dport {port} ")
    return matches


def _selects(selector: Doc, pod: Doc) -> bool:
    return _matches(selector, pod["metadata"].get("labels", {}))


def _matches(selector: Doc, labels: Mapping[str, str]) -> bool:
    wanted = cast("dict[str, str]", selector.get("matchLabels") or {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for each in cast("list[Doc]", selector.get("matchExpressions") or []):
        value, values = labels.get(each["key"]), each.get("values", [])
        match each["operator"]:
            case "In":
                holds = value in values
            case "NotIn":
                holds = value not in values
            case "Exists":
                holds = value is not None
            case "DoesNotExist":
                holds = value is None
            case other:
                raise AssertionError(other)
        if not holds:
            return False
    return True


def _filter(*command: str, given: str | None = None) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{given}"
    return done.stdout
