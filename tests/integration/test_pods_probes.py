"""Probes of real containers: each way to ask, what follows from the answers, and its words."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from lab.agent import Json, pod_manifest
from lab.images import WEB
from lab.ports import free_ports
from tests.integration.pods import (
    SLEEP,
    Node,
    conditions,
    host_folder,
    mount,
    shell,
    status_of,
    until_term,
)
from tests.unit.pod_clients.servers import health

EACH_SECOND: Mapping[str, int] = {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2}
WEB_CONTAINER: Json = {
    "name": "c",
    "image": WEB,
    "ports": [{"name": "http", "containerPort": 80}],
}
SERVING = b"\x08\x01"
LARGEST = 2**31 - 1


def is_ready(pod: Json) -> bool:
    return conditions(pod).get("Ready") == "True"


def is_unready(pod: Json) -> bool:
    return conditions(pod).get("Ready") == "False" and status_of(pod, "c")["started"]


def messages(node: Node, name: str, reason: str) -> list[str]:
    return [message for found, message in node.events(name) if found == reason]


@contextmanager
def health_service() -> Iterator[int]:
    """A server of gRPC's health service on the host, which serves until it is left."""
    (port,) = free_ports(1)
    ready = threading.Event()
    over = trio.Event()
    token: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        token.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(port)
            nursery.start_soon(
                trio.serve_listeners, health({"grpc-status": "0"}, SERVING), listeners
            )
            ready.set()
            await over.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield port
    finally:
        token[0].run_sync_soon(over.set)
        thread.join()


@pytest.mark.parametrize(
    "action",
    [
        {"httpGet": {"path": "/", "port": "http"}},
        {"tcpSocket": {"port": 80}},
        {"exec": {"command": ["true"]}},
    ],
    ids=lambda action: next(iter(action)),
)
def test_a_container_is_ready_when_its_probe_says_so(node: Node, action: Json) -> None:
    # What serves a port may come to listen only after the first run, which is made at once.
    numbers = dict.fromkeys(EACH_SECOND, LARGEST) if "exec" in action else EACH_SECOND
    probe = {**action, **numbers}
    name = f"ready-{next(iter(action)).lower()}"
    node.add(pod_manifest(name, {**WEB_CONTAINER, "readinessProbe": probe}))
    pod = node.wait(name, is_ready)
    assert status_of(pod, "c")["ready"] is True
    node.remove(name)


def test_a_server_of_grpc_is_asked_by_its_health_service(node: Node) -> None:
    with health_service() as port:
        probe = {"grpc": {"port": port}, **EACH_SECOND}
        served = until_term("c", readinessProbe=probe)
        node.add(pod_manifest("grpc", served, hostNetwork=True))
        node.wait("grpc", is_ready)
    node.wait("grpc", is_unready)
    failed = messages(node, "grpc", "Unhealthy")[0]
    assert failed.startswith("Readiness probe failed: ")
    node.remove("grpc")


FAILURES: Mapping[str, tuple[Json, str]] = {
    "refused": (
        {"httpGet": {"path": "/x", "port": 81}},
        'failed: Get "http://{ip}:81/x": dial tcp {ip}:81: connect: connection refused',
    ),
    "status": (
        {"httpGet": {"path": "/missing", "port": 80}},
        "failed: HTTP probe failed with statuscode: 404",
    ),
    "tcp": ({"tcpSocket": {"port": 81}}, "failed: dial tcp {ip}:81: connect: connection refused"),
    "exec": (
        {"exec": {"command": ["cat", "/missing"]}},
        "failed: cat: can't open '/missing': No such file or directory\n",
    ),
    "late": (
        {"exec": {"command": ["sleep", "60"]}, "timeoutSeconds": 1},
        'failed: command timed out: "sleep 60" timed out after 1s',
    ),
    "no-program": (
        {"exec": {"command": ["/no/such/program"]}},
        "errored and resulted in unknown state: rpc error: code = ",
    ),
    "no-port": (
        {"httpGet": {"port": "nowhere"}},
        'errored and resulted in unknown state: strconv.Atoi: parsing "nowhere": invalid syntax',
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_probe_that_fails_is_told_of_and_its_pod_is_not_ready(node: Node, case: str) -> None:
    action, words = FAILURES[case]
    probe = {**EACH_SECOND, **action}
    node.add(pod_manifest(case, {**WEB_CONTAINER, "readinessProbe": probe}))

    def is_told_of(pod: Json) -> bool:
        begin = f"Readiness probe {words.format(ip=pod['status'].get('podIP'))}"
        # The server may not listen yet when it is asked first.
        return any(said.startswith(begin) for said in messages(node, case, "Unhealthy"))

    pod = node.wait(case, lambda pod: is_unready(pod) and is_told_of(pod))
    assert status_of(pod, "c")["restartCount"] == 0
    node.remove(case)


def test_a_container_that_fails_its_liveness_probe_is_restarted(node: Node) -> None:
    """Its first instance ignores the stop signal: only the probe's own grace ends it in time."""
    probe = {
        **EACH_SECOND,
        "exec": {"command": ["test", "!", "-e", "/tmp/ill"]},
        "terminationGracePeriodSeconds": 2,
    }
    ill = "touch /kept/again /tmp/ill; trap '' TERM"
    script = f"test -e /kept/again && trap 'exit 0' TERM || {{ {ill}; }}; {SLEEP}"
    container = shell("c", script, livenessProbe=probe, volumeMounts=[mount("/kept", "kept")])
    volume = {"name": "kept", "emptyDir": {}}
    node.add(pod_manifest("ill", container, volumes=[volume], terminationGracePeriodSeconds=600))
    node.wait("ill", lambda pod: status_of(pod, "c")["restartCount"] > 0)
    killed = messages(node, "ill", "Killing")[0]
    assert killed == "Container c failed liveness probe, will be restarted"
    assert messages(node, "ill", "Unhealthy") == ["Liveness probe failed: "] * 2
    node.remove("ill")


def test_a_startup_probe_holds_readiness_back(node: Node, tmp_path: Path) -> None:
    readiness = {**EACH_SECOND, "exec": {"command": ["true"]}}
    startup = {
        **EACH_SECOND,
        "failureThreshold": 600,
        "exec": {"command": ["test", "-e", "/shared/up"]},
    }
    slow = until_term("c", volumeMounts=[mount("/shared")])
    slow.update(readinessProbe=readiness, startupProbe=startup)
    node.add(pod_manifest("slow", slow, **host_folder(tmp_path)))
    node.wait("slow", lambda _: messages(node, "slow", "Unhealthy"))
    pod = node.wait("slow", lambda pod: status_of(pod, "c").get("started") is False)
    assert not is_ready(pod)
    (tmp_path / "up").touch()
    pod = node.wait("slow", is_ready)
    assert status_of(pod, "c")["started"] is True
    failed = messages(node, "slow", "Unhealthy")
    assert all(message.startswith("Startup probe failed: ") for message in failed)
    node.remove("slow")


def test_a_sidecar_that_has_not_started_up_holds_up_the_others(node: Node) -> None:
    startup = {**EACH_SECOND, "failureThreshold": 600, "exec": {"command": ["test", "-e", "/up"]}}
    sidecar = until_term("s", "sleep 3; touch /up")
    sidecar.update(startupProbe=startup, restartPolicy="Always")
    node.add(pod_manifest("beside", until_term("c"), initContainers=[sidecar]))
    pod = node.wait("beside", is_ready)
    began = status_of(pod, "c")["state"]["running"]["startedAt"]
    held = status_of(pod, "s")["state"]["running"]["startedAt"]
    assert began > held
    assert status_of(pod, "s")["started"] is True
    node.remove("beside")
