"""Restart policies, and the waits between the restarts of what goes on crashing.

The crashing pods start with the module and crash while its other tests run; the tests of their
waits come last. The one with a cap needs another configuration, and so an agent and a runtime
(one has one agent) of its own.
"""

import http.client
import itertools
import threading
from collections.abc import Iterator

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from tests.integration.pods import (
    Node,
    conditions,
    container_ids,
    full_name,
    one_shot,
    phase,
    seconds_between,
    shell,
    status_of,
    until_term,
    waiting_reason,
)

CRASHING = pod_manifest("crashing", shell("c", "sleep 2; exit 1"))


class Ends:
    """The ends of a crashing container, as its statuses tell them.

    A thread looks until `wanted` ends are known: each is told only for a while.
    """

    def __init__(self, agent: LabAgent, wanted: int) -> None:
        self._agent = agent
        self._wanted = wanted
        self._ends: dict[str, Json] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def waits(self, *, deadline_seconds: float) -> list[float]:
        """Seconds from each end to the next start."""
        self._thread.join(deadline_seconds)
        assert len(self._ends) >= self._wanted, self._ends
        ends = sorted(self._ends.values(), key=lambda end: end["finishedAt"])[: self._wanted]
        return [
            seconds_between(before["finishedAt"], after["startedAt"])
            for before, after in itertools.pairwise(ends)
        ]

    def _watch(self) -> None:
        while len(self._ends) < self._wanted and not self._over.wait(0.25):
            try:
                status = status_of(self._agent.pods()[full_name("crashing")], "c")
            except (KeyError, OSError, ValueError, http.client.HTTPException):
                continue
            for state in (status["state"], status.get("lastState", {})):
                if end := state.get("terminated"):
                    self._ends[end["containerID"]] = end


@pytest.fixture(scope="module", autouse=True)
def crashing(node: Node) -> Iterator[Ends]:
    """A pod that crashes at once, with the waits of the defaults."""
    node.add(CRASHING)
    ends = Ends(node.agent, wanted=5)
    yield ends
    ends.stop()
    node.remove("crashing")


@pytest.fixture(scope="module", autouse=True)
def crashing_with_cap(
    containerd: Containerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ends]:
    """A pod that crashes at once, on a node that waits for 20 s at most."""
    settings = {
        "crashLoopBackOff": {"maxContainerRestartPeriod": "20s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
    }
    folder = tmp_path_factory.mktemp("capped")
    with (
        Containerd(containerd.wish, folder / "containerd") as runtime,
        LabAgent(folder / "node", endpoint=runtime.endpoint, settings=settings) as agent,
    ):
        agent.write("crashing.json", CRASHING)
        ends = Ends(agent, wanted=5)
        yield ends
        ends.stop()


def test_policy_always_restarts_what_ended_well(node: Node) -> None:
    node.add(pod_manifest("always", shell("c", "exit 0")))
    pod = node.wait("always", lambda pod: waiting_reason(pod, "c") == "CrashLoopBackOff")
    status = status_of(pod, "c")
    assert phase(pod) == "Running"
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["reason"] == "Completed"
    assert conditions(pod)["Ready"] == "False"
    message = status["state"]["waiting"]["message"]
    meta = pod["metadata"]
    assert message == (
        f"back-off 10s restarting failed container=c pod={meta['name']}_default({meta['uid']})"
    )
    assert (
        "BackOff",
        f"Back-off restarting failed container c in pod {meta['name']}_default({meta['uid']})",
    ) in node.events("always")
    node.remove("always")


def test_policy_on_failure_restarts_until_it_ends_well(node: Node) -> None:
    node.add(
        pod_manifest(
            "on-failure",
            shell(
                "c",
                "[ -e /v/once ] && exit 0; touch /v/once; exit 4",
                volumeMounts=[{"name": "v", "mountPath": "/v"}],
            ),
            restartPolicy="OnFailure",
            volumes=[{"name": "v", "emptyDir": {}}],
        )
    )
    pod = node.wait("on-failure", lambda pod: phase(pod) == "Succeeded")
    status = status_of(pod, "c")
    assert status["restartCount"] == 1
    assert status["state"]["terminated"]["exitCode"] == 0
    assert status["lastState"]["terminated"]["exitCode"] == 4
    node.remove("on-failure")


def test_policy_on_failure_leaves_alone_what_ended_well(node: Node) -> None:
    pod = node.finish(pod_manifest("succeeded", shell("c", "exit 0"), restartPolicy="OnFailure"))
    assert phase(pod) == "Succeeded"
    assert status_of(pod, "c")["restartCount"] == 0
    assert status_of(pod, "c")["state"]["terminated"]["reason"] == "Completed"
    node.remove("succeeded")


def test_policy_never_leaves_a_failed_container_alone(node: Node) -> None:
    pod = node.finish(one_shot("never", shell("good", "exit 0"), shell("bad", "exit 5")))
    assert phase(pod) == "Failed"
    assert conditions(pod)["Ready"] == "False"
    bad, good = status_of(pod, "bad"), status_of(pod, "good")
    assert bad["restartCount"] == good["restartCount"] == 0
    assert bad["state"]["terminated"]["reason"] == "Error"
    assert bad["state"]["terminated"]["exitCode"] == 5
    assert good["state"]["terminated"]["reason"] == "Completed"
    node.remove("never")


def test_a_pod_runs_as_long_as_one_of_its_containers_does(node: Node) -> None:
    node.add(one_shot("half", shell("bad", "exit 5"), until_term("stays")))
    pod = node.wait(
        "half",
        lambda pod: (
            "terminated" in status_of(pod, "bad")["state"]
            and "running" in status_of(pod, "stays")["state"]
        ),
    )
    assert phase(pod) == "Running"
    assert conditions(pod)["Ready"] == "False"
    node.remove("half")


def test_a_crash_of_one_container_leaves_its_neighbours_alone(node: Node) -> None:
    node.add(pod_manifest("neighbours", shell("crashes", "sleep 0.5; exit 1"), until_term("stays")))
    pod = node.wait("neighbours", is_running)
    before = container_ids(pod)
    pod = node.wait("neighbours", lambda pod: waiting_reason(pod, "crashes") == "CrashLoopBackOff")
    assert container_ids(pod)["stays"] == before["stays"]
    assert status_of(pod, "crashes")["restartCount"] > 0
    assert status_of(pod, "stays")["restartCount"] == 0
    node.remove("neighbours")


def test_a_container_that_is_killed_from_outside_is_restarted(node: Node) -> None:
    pod = node.run(pod_manifest("killed", until_term("c")))
    killed = container_ids(pod)["c"]
    node.containerd.ctr("tasks", "kill", "--signal", "SIGKILL", killed)
    pod = node.wait("killed", lambda pod: status_of(pod, "c")["restartCount"] and is_running(pod))
    end = status_of(pod, "c")["lastState"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (137, "Error")
    assert end["containerID"] == f"containerd://{killed}"
    node.remove("killed")


def test_a_sandbox_that_is_killed_from_outside_is_replaced(node: Node) -> None:
    pod = node.run(pod_manifest("sandbox-killed", until_term("c")))
    uid, before = pod["metadata"]["uid"], container_ids(pod)["c"]
    (sandbox,) = set(node.sandboxes(uid)) - {before}
    node.containerd.ctr("tasks", "kill", "--signal", "SIGKILL", sandbox)
    pod = node.wait(
        "sandbox-killed", lambda pod: container_ids(pod)["c"] != before and is_running(pod)
    )
    assert status_of(pod, "c")["restartCount"] == 1
    assert ("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.") in (
        node.events("sandbox-killed")
    )
    node.remove("sandbox-killed")


def test_a_pod_that_ran_too_long_fails(node: Node) -> None:
    pod = node.finish(pod_manifest("deadline", until_term("c"), activeDeadlineSeconds=2))
    assert phase(pod) == "Failed"
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert pod["status"]["message"] == (
        "Pod was active on the node longer than the specified deadline"
    )
    node.remove("deadline")


def test_restarts_wait_for_10_20_and_40_seconds_after_a_first_one_at_once(
    crashing: Ends,
) -> None:
    waits = crashing.waits(deadline_seconds=180)
    for seconds, wanted in zip(waits, (0, 10, 20, 40), strict=True):
        assert wanted <= seconds, waits


def test_the_longest_wait_can_be_set(crashing_with_cap: Ends) -> None:
    waits = crashing_with_cap.waits(deadline_seconds=180)
    for seconds, wanted in zip(waits, (0, 10, 20, 20), strict=True):
        assert wanted <= seconds, waits
    assert waits[-1] < 40, waits


def test_of_a_container_that_crashes_only_the_last_one_is_kept(node: Node, crashing: Ends) -> None:
    crashing.waits(deadline_seconds=180)
    pod = node.wait("crashing", lambda pod: waiting_reason(pod, "c") == "CrashLoopBackOff")
    (sandbox,) = set(node.sandboxes(pod["metadata"]["uid"])) - {container_ids(pod)["c"]}
    assert sandbox
    files = node.agent.root / "pods" / pod["metadata"]["uid"] / "containers" / "c"
    assert len(list(files.iterdir())) <= 2
