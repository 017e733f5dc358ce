"""A change of the resources of a pod that runs: refused, and said so, whatever happens since."""

import json

import pytest

from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from tests.e2e.cluster import Namespace, conditions, container, is_ready, until_term
from tests.e2e.local import AGENT, LocalCluster

SMALL: Json = {"cpu": "100m", "memory": "32Mi"}
LARGE: Json = {"cpu": "200m", "memory": "64Mi"}


def resize(namespace: Namespace, name: str, limits: Json) -> None:
    resources = {"limits": limits, "requests": limits}
    change = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    namespace.kubectl("patch", "pod", name, "--subresource=resize", f"-p={json.dumps(change)}")


def shown(pod: Json) -> list[Json]:
    """What the statuses of container and pod say that they may use."""
    of_container = container(pod)
    return [
        of_container["resources"]["limits"],
        of_container["allocatedResources"],
        pod["status"]["resources"]["limits"],
        pod["status"]["allocatedResources"],
    ]


@pytest.mark.skipif(AGENT is GoKubelet, reason="the Go kubelet resizes pods in place")
def test_a_resize_is_refused_and_changes_nothing_but_the_status(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    before = namespace.run("resized", until_term("c", resources={"limits": SMALL}))
    assert shown(before) == [SMALL] * 4
    resize(namespace, "resized", LARGE)
    after = namespace.wait("resized", lambda pod: "PodResizePending" in conditions(pod))
    generation = after["metadata"]["generation"]
    pending = conditions(after)["PodResizePending"]
    assert (pending["status"], pending["reason"]) == ("True", "Infeasible")
    assert pending["message"] == "this node agent does not resize pods in place yet"
    assert pending["observedGeneration"] == after["status"]["observedGeneration"] == generation
    assert container(after)["containerID"] == container(before)["containerID"]
    assert shown(after) == [SMALL] * 4
    namespace.wait_event("resized", "ResizeInfeasible", f'"generation":{generation}')

    local_cluster.restart_agent()
    local_cluster.wait_node_ready()
    identifier = container(after)["containerID"].partition("://")[2]
    local_cluster.containerd.ctr("tasks", "kill", "-s", "KILL", identifier)
    again = namespace.wait(
        "resized", lambda pod: is_ready(pod) and container(pod)["restartCount"] == 1
    )
    assert shown(again) == [SMALL] * 4
    assert "PodResizePending" in conditions(again)

    resize(namespace, "resized", SMALL)
    namespace.wait("resized", lambda pod: "PodResizePending" not in conditions(pod))
