"""A running agent that is told to read its configuration anew, and by mischief, a hundred times."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from time import monotonic

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import SLEEPER
from lab.processes import wait_until

DEADLINE_SECONDS = 60
STORM_SECONDS = float(os.environ.get("TRIO_KUBELET_RELOAD_SECONDS", "10"))
HEADER = '"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"'
BROKEN = (
    *("{", "", "maxPods: [", '{"kind": "Pod"}', '{"maxPods": -1}', "\0", "[]"),
    *(
        f"{{{HEADER}, {each}}}"
        for each in (
            f'"memoryThrottlingFactor": {10**309}',
            f'"logging": {{"flushFrequency": {10**23}}}',
            '"reservedSystemCPUs": "\\u00b2-\\u00b3"',
        )
    ),
)
PODS = 5


def pod(name: str) -> Json:
    return pod_manifest(name, {"name": "main", "image": SLEEPER})


def says(agent: LabAgent, words: str, times: int = 1) -> None:
    """Wait until the agent's log has these words so many times."""
    wait_until(
        lambda: agent.log.read_text().count(words) >= times,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=agent.last_words,
    )


def reload(agent: LabAgent, text: str) -> None:
    (agent.folder / "config.json").write_text(text)
    os.kill(agent.pid, signal.SIGHUP)


def containers(pods: dict[str, Json]) -> dict[str, tuple[str, int]]:
    """Id and restarts of the container of each pod that stays."""
    return {
        name: (status["containerID"], status["restartCount"])
        for name, each in pods.items()
        if name.startswith("stays")
        for status in each["status"]["containerStatuses"]
    }


def test_an_agent_takes_over_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    with LabAgent(tmp_path / "node") as agent:
        agent.write("web.json", pod("stays-web"))
        before = containers(agent.wait_for(lambda pods: any(map(is_running, pods.values()))))
        new = {**agent.configuration, "registryBurst": 20, "maxPods": 20, "cgroupRoot": "/other"}
        reload(agent, json.dumps(new))
        says(agent, "on a drained node")
        log = agent.log.read_text()
        assert "registryBurst: 10 -> 20" in log
        assert "maxPods: 110 -> 20" in log
        reload(agent, "{")
        says(agent, "configuration reload failed, keeping the previous settings")
        assert containers(agent.pods()) == before


def test_other_thresholds_hold_while_the_agent_runs(tmp_path: Path) -> None:
    with LabAgent(tmp_path / "node") as agent:
        assert memory_threshold(agent) == {("50Mi", False)}
        for fields, expected in (
            ({"memory.available": "99.9%"}, {("99.9%", True)}),
            ({"memory.available": "60Mi"}, {("60Mi", False)}),
            ({}, set()),
        ):
            reload(agent, json.dumps({**agent.configuration, "evictionHard": fields}))
            wait_until(
                partial(lambda wanted: memory_threshold(agent) == wanted, expected),
                deadline_seconds=DEADLINE_SECONDS,
                else_say=lambda: f"{memory_threshold(agent)}; {agent.last_words()}",
            )
        assert "eviction threshold crossed" in agent.log.read_text()


def memory_threshold(agent: LabAgent) -> set[tuple[str, bool]]:
    """The thresholds for the node's memory, and whether each is crossed."""
    return {
        (threshold["value"], threshold["crossed"])
        for signal in agent.ask("/debug/evictions")["signals"]
        if signal["signal"] == "memory.available"
        for threshold in signal["thresholds"]
    }


def test_thresholds_that_the_machine_cannot_keep_are_refused(tmp_path: Path) -> None:
    with LabAgent(tmp_path / "node") as agent:
        too_much = {"evictionHard": {"memory.available": "1Ei"}, "registryBurst": 20}
        reload(agent, json.dumps({**agent.configuration, **too_much}))
        says(agent, "configuration reload failed, keeping the previous settings")
        assert "invalid Node Allocatable configuration" in agent.log.read_text()
        reload(agent, json.dumps({**agent.configuration, "registryBurst": 30}))
        says(agent, "registryBurst: 10 -> 30")


def test_static_pods_follow_the_places_of_their_manifests(tmp_path: Path) -> None:
    """Another folder, a URL beside it; a source that is named no more has no pods."""
    with LabAgent(tmp_path / "node") as agent, served_manifest("url") as url:
        agent.write("goes.json", pod("goes"))
        agent.wait_for(lambda pods: running(pods) == {"goes"})
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "new.json").write_text(json.dumps(pod("stays-new")))
        new = {**agent.configuration, "staticPodPath": str(elsewhere)}
        reload(agent, json.dumps(new))
        before = containers(agent.wait_for(lambda pods: running(pods) == {"stays-new"}))
        new["staticPodURL"] = url
        reload(agent, json.dumps(new))
        after = agent.wait_for(lambda pods: running(pods) == {"stays-new", "url"})
        assert containers(after) == before
        reload(agent, json.dumps({**new, "staticPodPath": ""}))
        agent.wait_for(lambda pods: running(pods) == {"url"})
        reload(agent, json.dumps(agent.configuration))
        agent.wait_for(lambda pods: running(pods) == {"goes"})


def running(pods: dict[str, Json]) -> set[str]:
    """The names of the pods, without that of the node; none while one of them does not run."""
    if not all(map(is_running, pods.values())):
        return set()
    return {name.removesuffix(f"-{each['spec']['nodeName']}") for name, each in pods.items()}


@contextmanager
def served_manifest(name: str) -> Iterator[str]:
    """A server that has the manifest of one pod; the value is its URL."""
    body = json.dumps(pod(name)).encode()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_a_storm_of_reloads_disturbs_no_pod(tmp_path: Path) -> None:
    with LabAgent(tmp_path / "node") as agent:
        withstand_storm(agent, lambda _: agent.pods())


def test_a_storm_of_reloads_disturbs_no_container(containerd: Containerd, tmp_path: Path) -> None:
    """Each pod that comes has run on a containerd before the next one comes."""
    with LabAgent(tmp_path / "node", endpoint=containerd.endpoint) as agent:
        withstand_storm(
            agent,
            lambda name: agent.wait_for(
                lambda pods: any(each.startswith(name) and is_running(pods[each]) for each in pods)
            ),
        )


def withstand_storm(agent: LabAgent, see: Callable[[str], object]) -> None:
    """Write another file, good or broken, as fast as `see` has seen the pod that has come.

    The last one is broken: what the last good one said is in force.
    """
    for number in range(PODS):
        agent.write(f"stays-{number}.json", pod(f"stays-{number}"))
    before = containers(
        agent.wait_for(lambda pods: len(pods) == PODS and all(map(is_running, pods.values())))
    )
    good, began = agent.configuration, monotonic()
    for number in count():
        reload(agent, BROKEN[number % len(BROKEN)])
        name = f"goes-{number}"
        agent.write("goes.json", pod(name))
        see(name)
        new: Json = {
            "registryBurst": 100 + number,
            "evictionHard": {"memory.available": f"{50 + number % 2}Mi"},
            "serializeImagePulls": number % 2 == 0,
        }
        reload(agent, json.dumps({**good, **new}))
        agent.pods()
        if monotonic() > began + STORM_SECONDS:
            break
    says(agent, f"-> {100 + number}")
    refusal = "configuration reload failed, keeping the previous settings"
    refused = agent.log.read_text().count(refusal)
    assert refused
    reload(agent, BROKEN[0])
    says(agent, refusal, refused + 1)
    assert memory_threshold(agent) == {(new["evictionHard"]["memory.available"], False)}
    agent.remove("goes.json")
    after = agent.wait_for(lambda pods: len(pods) == PODS)
    assert containers(after) == before
    assert "Traceback" not in agent.log.read_text()
    taken = agent.log.read_text().count("configuration reloaded")
    print(f"{number + 1} pods came, {taken} files were taken over and {refused + 1} refused")
