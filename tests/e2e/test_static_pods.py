"""Static pods have mirrors in the API, and a mirror is only a picture."""

from collections.abc import Iterator
from contextlib import contextmanager

from lab.cluster_api import Json
from tests.e2e.cluster import Cluster, container, is_ready, until_term

MIRRORS = "/api/v1/namespaces/default/pods"
CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
CONFIG_SOURCE = "kubernetes.io/config.source"


@contextmanager
def static_pod(cluster: Cluster, name: str) -> Iterator[str]:
    """A static pod that runs; the value is where its mirror is."""
    cluster.add_static_pod(manifest(name))
    path = f"{MIRRORS}/{name}-{cluster.node}"
    cluster.api.wait_for(path, is_ready)
    yield path
    cluster.remove_static_pod(name)
    cluster.api.wait_gone(path)


def manifest(name: str, **environment: str) -> Json:
    env = [{"name": key, "value": value} for key, value in environment.items()]
    spec = {"containers": [until_term("c", env=env)], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_static_pod_is_shown_by_a_mirror_that_the_node_owns(cluster: Cluster) -> None:
    with static_pod(cluster, "shown") as path:
        mirror = cluster.api.get(path)
        annotations = mirror["metadata"]["annotations"]
        assert annotations[CONFIG_SOURCE] == "file"
        assert annotations[CONFIG_MIRROR] == annotations[CONFIG_HASH]
        owner = mirror["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", cluster.node, True)
        assert mirror["spec"]["nodeName"] == cluster.node
        assert container(mirror)["state"]["running"]["startedAt"]


def test_a_deleted_mirror_comes_back_and_its_container_runs_on(cluster: Cluster) -> None:
    with static_pod(cluster, "stays") as path:
        before = cluster.api.get(path)
        cluster.api.delete(path)
        after = cluster.api.wait_for(
            path,
            lambda seen: is_ready(seen) and seen["metadata"]["uid"] != before["metadata"]["uid"],
        )
        assert container(after)["containerID"] == container(before)["containerID"]


def test_a_changed_manifest_makes_another_pod_and_another_mirror(cluster: Cluster) -> None:
    with static_pod(cluster, "changes") as path:
        before = cluster.api.get(path)
        cluster.add_static_pod(manifest("changes", RELEASE="2"))
        after = cluster.api.wait_for(
            path,
            lambda seen: (
                is_ready(seen)
                and seen["metadata"]["annotations"][CONFIG_HASH]
                != before["metadata"]["annotations"][CONFIG_HASH]
            ),
        )
        assert after["spec"]["containers"][0]["env"] == [{"name": "RELEASE", "value": "2"}]
        assert container(after)["containerID"] != container(before)["containerID"]


def test_while_its_node_is_deleted_a_static_pod_has_no_mirror_and_runs_on(
    cluster: Cluster,
) -> None:
    with static_pod(cluster, "homeless") as path:
        before = cluster.api.get(path)
        cluster.api.delete(f"/api/v1/nodes/{cluster.node}")
        cluster.api.wait_gone(path)
        cluster.stop_agent()
        cluster.start_agent()
        cluster.wait_node_ready()
        after = cluster.api.wait_for(path, is_ready)
        assert container(after)["containerID"] == container(before)["containerID"]
        assert container(after)["restartCount"] == 0


def test_a_static_pod_that_comes_back_at_once_counts_on_and_keeps_its_last_log(
    cluster: Cluster,
) -> None:
    with static_pod(cluster, "returns") as path:
        before = cluster.api.get(path)
        cluster.remove_static_pod("returns")
        cluster.api.wait_gone(path)
        cluster.add_static_pod(manifest("returns"))
        after = cluster.api.wait_for(
            path,
            lambda seen: (
                is_ready(seen)
                and container(seen)["containerID"] != container(before)["containerID"]
            ),
        )
        assert container(after)["restartCount"] == 1
        name = after["metadata"]["name"]
        assert cluster.kubectl("logs", "-n", "default", name, "--previous") == ""
