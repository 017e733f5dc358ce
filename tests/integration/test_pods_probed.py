"""What probes and hooks ask for, when, and what follows, by a server of ours that they ask.

The environment of the agent names a proxy that is not there: nothing would come through it.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import BUSYBOX, SLEEPER
from lab.ports import LOOPBACK, free_port
from tests.integration.pods import (
    Node,
    conditions,
    container_ids,
    host_folder,
    mount,
    one_shot,
    shell,
    status_of,
    until_term,
)
from tests.integration.probed_server import ILL, WELL, Answer, ProbedServer
from trio_kubelet.telemetry.journal import MOST_CHARACTERS

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EACH_SECOND = {"periodSeconds": 1, "timeoutSeconds": 5}
SELDOM = {"periodSeconds": 600, "timeoutSeconds": 5}
HEADERS = [
    {"name": "host", "value": "web.test"},
    {"name": "X-Name", "value": "one"},
    {"name": "x-name", "value": "two"},
]
LIMIT = 10 * 1024
UID = "6f1d4b1e-0000-4000-8000-0000000000cb"


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """An agent whose environment names proxies."""
    with pytest.MonkeyPatch.context() as environment:
        proxy = f"http://{LOOPBACK}:{free_port()}"
        for name in PROXIES:
            environment.setenv(name, proxy)
            environment.setenv(name.upper(), proxy)
        for name in ("no_proxy", "NO_PROXY"):
            environment.delenv(name, raising=False)
        with LabAgent(tmp_path_factory.mktemp("node"), endpoint=containerd.endpoint) as agent:
            yield Node(agent=agent, containerd=containerd)


@pytest.fixture
def server() -> Iterator[ProbedServer]:
    with ProbedServer() as server:
        yield server


@pytest.fixture
def tls_server() -> Iterator[ProbedServer]:
    with ProbedServer(with_tls=True) as server:
        yield server


def get(server: ProbedServer, path: str, **action: object) -> Json:
    """What asks the server for a path."""
    return {"httpGet": {"host": LOOPBACK, "port": server.port, "path": path, **action}}


def is_ready(pod: Json) -> bool:
    return conditions(pod).get("Ready") == "True"


def restarts(pod: Json) -> dict[str, int]:
    return {name: status_of(pod, name)["restartCount"] for name in container_ids(pod)}


def messages(node: Node, name: str, reason: str) -> list[str]:
    return [message for found, message in node.events(name) if found == reason]


def expected_headers(agent: str) -> tuple[tuple[str, str], ...]:
    return (
        ("Host", "web.test"),
        ("User-Agent", agent),
        ("Accept", "*/*"),
        ("X-Name", "one"),
        ("X-Name", "two"),
        ("Connection", "close"),
    )


def test_a_probe_asks_over_http_as_the_go_kubelet_does(
    node: Node, server: ProbedServer, tls_server: ProbedServer
) -> None:
    """Headers, names of hosts and ports, TLS, redirects, and how much is read of a body."""
    there = f"https://{LOOPBACK}:{tls_server.port}/followed"
    away = {"Location": "http://elsewhere.test/"}
    server.answers |= {
        "/same-host": Answer(status=302, headers={"Location": there}),
        "/other-host": Answer(status=302, headers=away, body=b"x" * 2 * LIMIT),
    }
    actions = {
        "headers": get(server, "/headers?a=b", port="web", httpHeaders=HEADERS),
        "by-name": get(server, "/by-name", host="localhost"),
        "tls": get(tls_server, "/tls", scheme="HTTPS"),
        "same-host": get(server, "/same-host"),
        "other-host": get(server, "/other-host"),
    }
    ports = [{"name": "web", "containerPort": server.port}]
    containers = [
        until_term(name, ports=ports, readinessProbe={**action, **EACH_SECOND})
        for name, action in actions.items()
    ]
    node.add(pod_manifest("asks", *containers))
    node.wait("asks", is_ready)
    assert server.asked("/headers?a=b")[0].headers == expected_headers("kube-probe/1.36")
    assert server.asked("/by-name")[0].headers[0] == ("Host", f"localhost:{server.port}")
    assert tls_server.paths == {"/tls", "/followed"}
    warning = "Readiness probe warning: Probe terminated redirects, Response body: "
    said = messages(node, "asks", "ProbeWarning")[0]
    assert said.startswith(f"{warning}x")
    # The journal cuts what it keeps; the event has the whole.
    assert len(said) == MOST_CHARACTERS + 1 < len(warning) + LIMIT
    assert messages(node, "asks", "Unhealthy") == []
    node.remove("asks")


def test_a_startup_probe_holds_back_the_others_of_sidecars_and_containers(
    node: Node, server: ProbedServer
) -> None:
    def probed(name: str, readiness: Json) -> Json:
        """A container with all three probes, each of which asks for a path of its own."""
        return until_term(
            name,
            startupProbe={**get(server, f"/{name}/up"), **EACH_SECOND, "failureThreshold": 600},
            readinessProbe={**get(server, f"/{name}/ready"), **readiness, "failureThreshold": 1},
            livenessProbe={**get(server, f"/{name}/lives"), **EACH_SECOND, "failureThreshold": 2},
        )

    server.answers |= {"/s/up": ILL, "/c/up": ILL}
    sidecar = {**probed("s", EACH_SECOND), "restartPolicy": "Always"}
    node.add(pod_manifest("held", probed("c", SELDOM), initContainers=[sidecar]))
    server.wait_for("/s/up", 3)
    assert server.paths == {"/s/up"}
    server.answers["/s/up"] = WELL
    server.wait_for("/c/up", 3)
    assert server.paths & {"/c/ready", "/c/lives"} == set()
    server.answers["/c/up"] = WELL
    before = node.wait("held", is_ready)
    assert len(server.asked("/c/ready")) == 1, "at once, not a period later"
    runs = len(server.asked("/c/up"))
    server.wait_for("/c/lives", 2)
    assert len(server.asked("/c/up")) == runs, "a container starts up once"

    server.answers["/s/ready"] = ILL
    node.wait("held", lambda pod: not is_ready(pod))
    server.answers["/s/ready"] = WELL
    server.answers["/s/lives"] = ILL
    node.wait("held", lambda pod: restarts(pod)["s"])
    server.forget()
    server.answers["/s/lives"] = WELL
    for path in ("/s/up", "/s/ready", "/s/lives"):
        server.wait_for(path)
    after = node.wait("held", is_ready)
    assert container_ids(after)["c"] == container_ids(before)["c"]
    assert container_ids(after)["s"] != container_ids(before)["s"]
    assert "Container s failed liveness probe, will be restarted" in (
        messages(node, "held", "Killing")
    )
    node.remove("held")


def test_each_instance_of_a_container_is_counted_anew(node: Node) -> None:
    probe = {"exec": {"command": ["false"]}, **EACH_SECOND, "failureThreshold": 2}
    node.add(pod_manifest("anew", until_term("c", livenessProbe=probe)))
    node.wait("anew", lambda _: len(messages(node, "anew", "Killing")) == 2)
    told = [reason for reason, _ in node.events("anew") if reason in ("Unhealthy", "Killing")]
    assert told == ["Unhealthy", "Unhealthy", "Killing"] * 2
    node.remove("anew")


def test_probes_keep_to_their_times_and_scatter_when_an_agent_is_started(
    node: Node, server: ProbedServer
) -> None:
    delay, period = 10, 2
    probe = {"initialDelaySeconds": delay, "periodSeconds": period}
    paths = [f"/lives/{number}" for number in range(5)]
    containers = [
        until_term(f"c{number}", livenessProbe={**get(server, path), **probe})
        for number, path in enumerate(paths)
    ]
    twice = {**EACH_SECOND, "periodSeconds": 2, "successThreshold": 2}
    containers[0]["readinessProbe"] = {**get(server, "/ready"), **twice}
    node.add(pod_manifest("times", *containers))
    pod = node.wait("times", is_ready)
    assert len(server.asked("/ready")) >= 2
    node.agent.kill()
    node.agent.start()
    began = datetime.fromisoformat(status_of(pod, "c0")["state"]["running"]["startedAt"])
    for number, request in enumerate(server.wait_for(paths[0], 2)):
        assert request.at >= began.timestamp() + delay + number * period
    node.agent.kill()
    server.forget()
    node.agent.start()
    times = [server.wait_for(path)[0].at for path in paths]
    assert max(times) - min(times) > period / 20, "one by one, by chance"
    after = node.wait("times", is_running)
    assert set(restarts(after).values()) == {0}
    node.remove("times")


def test_while_a_pod_ends_only_its_readiness_is_asked_for(
    node: Node, server: ProbedServer, tmp_path: Path
) -> None:
    script = "trap : TERM; until [ -e /shared/go ]; do sleep 0.1; done"

    def stays(name: str, **probes: Json) -> Json:
        each = {kind: {**action, **EACH_SECOND} for kind, action in probes.items()}
        return shell(name, script, volumeMounts=[mount("/shared")], **each)

    server.answers["/up"] = ILL
    never_up = stays("d", startupProbe=get(server, "/up"), readinessProbe=get(server, "/held"))
    never_up["startupProbe"]["failureThreshold"] = 600
    lives = stays("c", readinessProbe=get(server, "/ready"), livenessProbe=get(server, "/lives"))
    node.add(pod_manifest("ends", lives, never_up, **host_folder(tmp_path)))
    for path in ("/ready", "/lives", "/up"):
        server.wait_for(path)
    node.remove("ends")
    node.agent.wait_for(lambda _: len(messages(node, "ends", "Killing")) == 2)
    server.forget()
    server.wait_for("/ready")
    # What was under way at the stop has come to the server by now.
    server.forget()
    server.answers |= {"/ready": ILL, "/lives": ILL}
    server.wait_for("/ready", 4)
    assert server.paths == {"/ready"}
    failed = "Readiness probe failed: HTTP probe failed with statuscode: 500"
    assert failed in messages(node, "ends", "Unhealthy")
    (tmp_path / "go").touch()


def test_what_a_probe_has_found_stands_over_changes_for_others(
    node: Node, server: ProbedServer
) -> None:
    def manifest(image: str, label: str) -> Json:
        probed = until_term("same", readinessProbe={**get(server, "/ready"), **SELDOM})
        made = pod_manifest("stands", probed, {**until_term("changes"), "image": image})
        made["metadata"] |= {"uid": UID, "labels": {"tier": label}}
        return made

    node.add(manifest(BUSYBOX, "front"))
    before = node.wait("stands", is_ready)
    node.add(manifest(SLEEPER, "back"))
    after = node.wait(
        "stands", lambda pod: status_of(pod, "changes")["image"] == SLEEPER and is_running(pod)
    )
    assert after["metadata"]["labels"] == {"tier": "back"}
    assert container_ids(after)["same"] == container_ids(before)["same"]
    assert status_of(after, "same")["ready"] is True
    assert len(server.asked("/ready")) == 1
    node.remove("stands")


def test_a_probe_that_the_end_of_its_container_cuts_off_says_nothing(
    node: Node, tmp_path: Path
) -> None:
    """A command is killed with it, and the connection to its server breaks."""
    patient = {"timeoutSeconds": 600, "periodSeconds": 1, "failureThreshold": 1}
    command = ["sh", "-c", "touch /shared/run; sleep 1000000"]
    has_both = "[ -e /shared/run ] && grep -q GET /shared/asked"
    container = shell(
        "c",
        f"sleep 1000000 | nc -l -p 8080 >/shared/asked & until {has_both}; do sleep 0.1; done",
        readinessProbe={"exec": {"command": command}, **patient},
        livenessProbe={"httpGet": {"path": "/", "port": 8080}, **patient},
        volumeMounts=[mount("/shared")],
    )
    node.add(one_shot("cut-off", container, **host_folder(tmp_path)))
    pod = node.wait("cut-off", lambda pod: "terminated" in status_of(pod, "c")["state"])
    assert status_of(pod, "c")["state"]["terminated"]["exitCode"] == 0
    told = node.events("cut-off")
    assert [reason for reason, _ in told] == ["Pulled", "Created", "Started"], told
    node.remove("cut-off")


def test_hooks_ask_over_both_schemes_with_their_headers(
    node: Node, server: ProbedServer, tls_server: ProbedServer
) -> None:
    hooks = {
        "postStart": get(server, "/start", httpHeaders=HEADERS),
        "preStop": get(tls_server, "/stop", scheme="HTTPS", httpHeaders=HEADERS),
    }
    node.run(pod_manifest("hooks", until_term("c", lifecycle=hooks)))
    (start,) = server.wait_for("/start")
    node.remove("hooks")
    (stop,) = tls_server.wait_for("/stop")
    assert start.headers == stop.headers == expected_headers("kube-lifecycle/1.36")
