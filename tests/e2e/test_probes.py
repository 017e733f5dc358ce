"""Probes as users see them: their words, rollouts that lose nothing, agents that are killed."""

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from attrs import define, field

from lab.agent import LabAgent
from lab.cluster_api import Json
from lab.images import BUSYBOX, WEB
from lab.ports import free_port
from lab.probe_targets import ProbeTargets
from lab.processes import wait_until
from tests.e2e.cluster import (
    Namespace,
    conditions,
    container,
    container_ids,
    is_ready,
    shell,
    until_term,
    workload,
)
from tests.e2e.local import AGENT, LocalCluster
from tests.e2e.test_static_pods import MIRRORS

NEVER_ENOUGH = {"periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 1000}
IN_TIME = "context deadline exceeded"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"


def http(path: str) -> Json:
    return {"httpGet": {"path": path, "port": "WEB"}}


def grpc(service: str) -> Json:
    return {"grpc": {"port": "HEALTH", "service": service}}


def command(script: str) -> Json:
    return {"exec": {"command": ["sh", "-c", script]}}


WORDS: Mapping[str, tuple[Json, str]] = {
    "http-refused": (
        {"httpGet": {"path": "/x", "port": "CLOSED"}},
        r'failed: Get "http://IP:CLOSED/x": dial tcp IP:CLOSED: connect: connection refused',
    ),
    "http-500": (http("/500"), "failed: HTTP probe failed with statuscode: 500"),
    "http-hang": (
        http("/hang"),
        rf'failed: Get "http://IP:WEB/hang": {IN_TIME} '
        r"\(Client.Timeout exceeded while awaiting headers\)",
    ),
    "http-close": (http("/close"), 'failed: Get "http://IP:WEB/close": EOF'),
    "http-cut": (http("/cut"), "errored and resulted in failure state: unexpected EOF"),
    "http-away": (http("/away"), "warning: Probe terminated redirects, Response body: "),
    "tcp-refused": (
        {"tcpSocket": {"port": "CLOSED"}},
        "failed: dial tcp IP:CLOSED: connect: connection refused",
    ),
    "grpc-refused": (
        {"grpc": {"port": "CLOSED"}},
        f'failed: timeout: failed to connect service "IP:CLOSED" within 1s: {IN_TIME}',
    ),
    "grpc-ill": (grpc("ill"), r'failed: service unhealthy \(responded with "NOT_SERVING"\)'),
    "grpc-hang": (grpc("hang"), "failed: timeout: health rpc did not complete within 1s"),
    "grpc-close": (
        grpc("close"),
        "failed: error: health rpc probe failed: rpc error: code = Unavailable desc = "
        "error reading from server: EOF",
    ),
    "exec-fails": (command("echo out; echo err >&2; exit 3"), "failed: out\nerr\n"),
    "exec-hangs": (
        {"exec": {"command": ["sleep", "9"]}},
        'failed: command timed out: "sleep 9" timed out after 1s',
    ),
}
"""Probes, and what `Unhealthy` or `ProbeWarning` says of them after the kind of probe."""


@define
class Asked:
    """Pods on the host's network, whose probes ask servers of ours."""

    namespace: Namespace
    ports: Mapping[str, int]

    def filled(self, probe: Json) -> Json:
        """The probe with the number of its port in the place of its name."""
        ((way, action),) = probe.items()
        if "port" not in action:
            return probe
        return {way: {**action, "port": self.ports[action["port"]]}}


@pytest.fixture(scope="module")
def targets() -> ProbeTargets:
    """Servers of ours, which serve as long as this process is there."""
    servers = ProbeTargets()
    threading.Thread(target=servers.serve, daemon=True).start()
    return servers


@pytest.fixture(scope="module")
def asked(local_cluster: LocalCluster, targets: ProbeTargets) -> Iterator[Asked]:
    """A pod for each probe."""
    ports = {"WEB": targets.http_port, "HEALTH": targets.grpc_port, "CLOSED": free_port()}
    asked = Asked(namespace=local_cluster.make_namespace("asked"), ports=ports)
    for position, (name, (probe, _)) in enumerate(WORDS.items()):
        kind = ("readinessProbe", "livenessProbe")[position % 2]
        asked.namespace.add(
            name,
            {**until_term("c"), kind: {**asked.filled(probe), **NEVER_ENOUGH}},
            hostNetwork=True,
        )
    yield asked
    asked.namespace.delete()


@pytest.mark.parametrize("name", WORDS)
def test_the_events_of_a_probe_say_what_the_go_kubelet_says(asked: Asked, name: str) -> None:
    _, words = WORDS[name]
    kind = ("Readiness", "Liveness")[list(WORDS).index(name) % 2]
    for port, number in asked.ports.items():
        words = words.replace(port, str(number))
    pattern = f"{kind} probe {words}".replace("IP", r"[\d.]+")
    seen: list[str] = []

    def is_told() -> bool:
        seen[:] = [each["message"] for each in asked.namespace.events(name)]
        return any(re.fullmatch(pattern, message) for message in seen)

    wait_until(is_told, deadline_seconds=60, else_say=lambda: f"no {pattern!r} in {seen}")


SERVES = "sleep 1; touch /tmp/up; sleep 1; httpd -p 80 -h /www; touch /tmp/ready"
WEB_PROBES: Mapping[str, Json] = {
    "startupProbe": {**command("test -e /tmp/up"), "periodSeconds": 1, "failureThreshold": 60},
    "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1},
}


@define
class Client:
    """Asks all ready endpoints of a Service again and again; `failed` is what went wrong."""

    namespace: Namespace
    succeeded: int = 0
    failed: list[str] = field(factory=list)
    over: threading.Event = field(factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask until the end of the block, in a thread."""
        thread = threading.Thread(target=self._ask_all, daemon=True)
        thread.start()
        yield
        self.over.set()
        thread.join()

    def _ask_all(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self.over.wait(0.02):
            for address in self.endpoints():
                try:
                    with opener.open(f"http://{address}/", timeout=2):
                        self.succeeded += 1
                except (OSError, urllib.error.HTTPError) as error:
                    self.failed.append(f"{address}: {error!r}")

    def endpoints(self) -> list[str]:
        """The addresses that are ready at this moment."""
        slices = self.namespace.api.get(SLICES.format(self.namespace.name))["items"]
        return [
            endpoint["addresses"][0]
            for each in slices
            for endpoint in each.get("endpoints") or ()
            if endpoint["conditions"]["ready"]
        ]


def test_no_request_goes_to_a_pod_that_is_not_ready_while_a_deployment_rolls(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """Also while the agent is killed in between."""
    web = {
        "name": "c",
        "image": WEB,
        "command": ["sh", "-c", f"{SERVES}; trap 'exit 0' TERM; sleep 1000000 & wait"],
        "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
        **WEB_PROBES,
    }
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    body = workload("web", web, replicas=2, strategy=rolling)
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 10
    namespace.create("Deployment", "web", body)
    service = {"spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    namespace.create("Service", "web", service)
    namespace.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    client = Client(namespace)
    wait_until(
        lambda: len(client.endpoints()) == 2,
        deadline_seconds=30,
        else_say=lambda: f"endpoints are {client.endpoints()}",
    )
    old = {pod["metadata"]["name"] for pod in namespace.pods("web")}
    with client.asking():
        namespace.kubectl("rollout", "restart", "deployment/web")
        namespace.wait_all(lambda pods: len(pods) > 2, "web")
        local_cluster.kill_agent()
        local_cluster.start_agent()
        namespace.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
        pods = namespace.wait_all(lambda pods: len(pods) == 2 and all(map(is_ready, pods)), "web")
    assert not old & {pod["metadata"]["name"] for pod in pods}
    assert client.failed == []
    assert client.succeeded > 10


def test_a_pod_that_ends_says_when_it_is_not_ready_any_more(namespace: Namespace) -> None:
    trap = "trap 'kill $server; sleep 600' TERM"
    script = f"httpd -f -p 8080 -h / & server=$!; {trap}; while :; do sleep 0.1; done"
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1}
    namespace.run("ends", shell("c", script, readinessProbe=probe))
    namespace.kubectl("delete", "pod", "ends", "--grace-period=20", "--wait=false")
    pod = namespace.wait("ends", lambda pod: not container(pod)["ready"])
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 20
    assert "running" in container(pod)["state"]
    assert conditions(pod)["Ready"]["reason"] == "ContainersNotReady"


def test_what_was_ready_stays_so_when_the_agent_is_killed(
    local_cluster: LocalCluster,
    namespace: Namespace,
    targets: ProbeTargets,
    request: pytest.FixtureRequest,
) -> None:
    """The Go kubelet may take pods for unready until their probes have succeeded again."""
    port = targets.http_port
    probe: Json = {"httpGet": {"path": "/200?ready", "port": port}, "periodSeconds": 1}
    startup = {**probe, "httpGet": {"path": "/200?startup", "port": port}, "failureThreshold": 60}
    probed = until_term("c", readinessProbe=probe, livenessProbe=probe, startupProbe=startup)
    made = namespace.run("stays", probed, hostNetwork=True)
    # What is known of a static pod comes with its mirror, and its probe may have run before that.
    of_static = {**startup, "httpGet": {"path": "/200?static", "port": port}}
    static = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probed"},
        "spec": {
            "containers": [{**probed, "startupProbe": of_static}],
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
        },
    }
    mirror = f"{MIRRORS}/probed-{local_cluster.node}"
    local_cluster.add_static_pod(static)
    request.addfinalizer(lambda: local_cluster.remove_static_pod("probed"))
    seen = [made, namespace.api.wait_for(mirror, is_ready)]
    before = container_ids(seen)
    local_cluster.kill_agent()
    targets.asked.clear()
    local_cluster.start_agent()
    # A probe that was held up says so late: each is run for some periods.
    wait_until(
        lambda: len(targets.asked) > 20,
        deadline_seconds=60,
        else_say=lambda: f"only {len(targets.asked)} probes were run",
    )
    assert {path for path, _ in targets.asked} >= {"http /200?ready"}
    if AGENT is LabAgent:
        assert "http /200?startup" not in {path for path, _ in targets.asked}
        default = Namespace(cluster=local_cluster, name="default")
        versions = namespace.versions(made) + default.versions(seen[1])
        assert [each["status"] for each in versions if not is_ready(each)] == []
    after = [namespace.pod("stays"), namespace.api.get(mirror)]
    assert container_ids(after) == before


def test_a_debug_container_runs_beside_the_others_and_changes_nothing_for_them(
    namespace: Namespace,
) -> None:
    pod = namespace.run("debugged", until_term("c", readinessProbe=command("true")))
    namespace.kubectl(
        "debug", "debugged", f"--image={BUSYBOX}", "--target=c", "--container=d",
        "--profile=general", "--", "sh", "-c", "ls /proc/1/exe && exit 7",
    )  # fmt: skip

    def debug(pod: Json) -> Json:
        statuses = pod["status"].get("ephemeralContainerStatuses") or [{"state": {}}]
        found: Json = statuses[0]["state"].get("terminated", {})
        return found

    after = namespace.wait("debugged", debug)
    assert debug(after)["exitCode"] == 7
    assert is_ready(after)
    assert container_ids([after]) == container_ids([pod])
    assert container(after)["restartCount"] == 0
