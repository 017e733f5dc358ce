"""The common parts of the tests of evictions: pods that go, and the words that tell why."""

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import (
    Cluster,
    Namespace,
    conditions,
    container,
    is_over,
    is_ready,
    shell,
)

MI = 1 << 20
DEADLINE_SECONDS = 120
# The images of other tests stay: nobody could pull them again.
NOTHING_BUT_PODS = {
    "evictionPressureTransitionPeriod": "5s",
    "volumeStatsAggPeriod": "1s",
    "imageMinimumGCAge": "24h",
}
EVENTS = "/api/v1/events"


def evicted(namespace: Namespace, name: str) -> Json:
    """A pod that was evicted, as it looks then."""
    pod = namespace.wait(name, is_over, deadline_seconds=DEADLINE_SECONDS)
    status: Json = pod["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    namespace.wait_event(name, "Evicted", status["message"])
    return pod


def wait_pressure(cluster: Cluster, kind: str) -> None:
    """Wait until the node has a condition."""
    cluster.api.wait_for(
        f"/api/v1/nodes/{cluster.node}",
        lambda node: conditions(node)[kind]["status"] == "True",
        deadline_seconds=DEADLINE_SECONDS,
    )


def wait_pressure_over(cluster: Cluster, kind: str, pod: Json) -> None:
    """Wait until the node has a condition no more that it has had since a pod was made."""
    made = pod["metadata"]["creationTimestamp"]

    def is_over_again(node: Json) -> bool:
        found = conditions(node)[kind]
        return bool(found["status"] == "False" and found["lastTransitionTime"] > made)

    path = f"/api/v1/nodes/{cluster.node}"
    cluster.api.wait_for(path, is_over_again, deadline_seconds=DEADLINE_SECONDS)


def runs_on(namespace: Namespace, before: Json) -> bool:
    """True if a pod is Ready, in the container that it had before."""
    now = namespace.pod(before["metadata"]["name"])
    return is_ready(now) and container(now)["containerID"] == container(before)["containerID"]


def wait_node_event(cluster: Cluster, reason: str, message: str) -> None:
    """Wait for an event about the node."""
    wait_until(
        lambda: any(
            each["message"] == message
            for each in cluster.api.get(EVENTS, fieldSelector=f"reason={reason}")["items"]
        ),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"no event {reason} {message}",
    )


def disrupted(pod: Json) -> bool:
    """True if the pod says that the node ended it for reasons that are not the pod's."""
    found = conditions(pod).get("DisruptionTarget", {})
    told = found.get("status"), found.get("reason"), found.get("message")
    return told == ("True", "TerminationByKubelet", pod["status"]["message"])


def ends_with_143(script: str, **fields: object) -> Json:
    """A container that runs a script, then stays, and says at SIGTERM that it was ended.

    Of a pod whose containers end with 0 the Go kubelet tells Succeeded and no reason.
    """
    return shell("c", f"trap 'exit 143' TERM; {script}; sleep 1000000 & wait", **fields)


def asking(memory: str) -> Json:
    return {"resources": {"requests": {"memory": memory}}}
