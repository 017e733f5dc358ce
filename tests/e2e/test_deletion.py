"""Pods go as they were told to: with grace, by force, and with their namespace."""

import time
from collections.abc import Sequence

import pytest

from lab.go_kubelet import GoKubelet
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, container, is_ready, shell, until_term
from tests.e2e.local import AGENT, LocalCluster

KILLED = 137
STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"


def test_a_pod_that_obeys_does_not_use_up_its_grace_period(namespace: Namespace) -> None:
    namespace.run("obeys", until_term("c"), terminationGracePeriodSeconds=600)
    namespace.kubectl("delete", "pod", "obeys", "--timeout=60s")
    namespace.wait_event("obeys", "Killing", "Stopping container c")


def test_a_container_has_its_grace_period_to_end_in(namespace: Namespace) -> None:
    last_will = shell(
        "c", "trap 'sleep 3; exit 5' TERM; while :; do sleep 0.1; done", workingDir="/"
    )
    namespace.run("lingers", last_will, terminationGracePeriodSeconds=30)
    with namespace.api.watch(
        namespace.path("Pod"), deadline_seconds=40, fieldSelector="metadata.name=lingers"
    ) as events:
        namespace.api.delete(namespace.path("Pod", "lingers"))
        seen = []
        for event in events:
            seen.append(event)
            if event["type"] == "DELETED":
                break
    assert seen[-1]["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert container(seen[-1]["object"])["state"]["terminated"]["exitCode"] == 5


def test_a_stubborn_container_is_killed_after_its_grace_period(namespace: Namespace) -> None:
    namespace.run("stubborn", shell("c", STUBBORN), terminationGracePeriodSeconds=2)
    started = time.monotonic()
    namespace.kubectl("delete", "pod", "stubborn", "--timeout=40s")
    assert time.monotonic() - started >= 2


def test_who_has_used_up_its_time_with_a_hook_has_two_seconds_after_its_signal(
    namespace: Namespace,
) -> None:
    slow = "trap 'sleep 1; exit 5' TERM; while :; do sleep 0.1; done"
    lifecycle = {"preStop": {"exec": {"command": ["sleep", "1000"]}}}
    sidecars = [
        shell(f"s{number}", slow, lifecycle=lifecycle, restartPolicy="Always")
        for number in range(3)
    ]
    namespace.run(
        "hooked",
        shell("c", slow, lifecycle=lifecycle),
        initContainers=sidecars,
        terminationGracePeriodSeconds=4,
    )
    started = time.monotonic()
    with namespace.api.watch(
        namespace.path("Pod"), deadline_seconds=60, fieldSelector="metadata.name=hooked"
    ) as events:
        namespace.api.delete(namespace.path("Pod", "hooked"))
        last = next(event["object"] for event in events if event["type"] == "DELETED")
    assert time.monotonic() - started >= 5
    statuses = (*last["status"]["containerStatuses"], *last["status"]["initContainerStatuses"])
    assert [each["state"]["terminated"]["exitCode"] for each in statuses] == [5] * 4


@pytest.mark.parametrize(
    ("how", "grace_seconds"),
    [(("--now",), 1), (("--grace-period=2",), 2), (("--grace-period=-1",), 3)],
)
def test_kubectl_says_how_much_grace_there_is(
    namespace: Namespace, how: Sequence[str], grace_seconds: int
) -> None:
    namespace.run("stubborn", shell("c", STUBBORN), terminationGracePeriodSeconds=3)
    with namespace.api.watch(
        namespace.path("Pod"), deadline_seconds=60, fieldSelector="metadata.name=stubborn"
    ) as events:
        namespace.kubectl("delete", "pod", "stubborn", *how, "--wait=false")
        graces, last = [], None
        for event in events:
            last = event["object"]
            graces.append(last["metadata"].get("deletionGracePeriodSeconds"))
            if event["type"] == "DELETED":
                break
    assert [each for each in graces if each][:1] == [grace_seconds]
    assert last is not None
    assert container(last)["state"]["terminated"]["exitCode"] == KILLED


@pytest.mark.skipif(AGENT is GoKubelet, reason="the Go kubelet may wait for the longer period")
def test_a_shorter_grace_period_ends_a_longer_wait(namespace: Namespace) -> None:
    namespace.run("stubborn", shell("c", STUBBORN), terminationGracePeriodSeconds=600)
    path = namespace.path("Pod", "stubborn")
    namespace.api.delete(path)
    namespace.wait_event("stubborn", "Killing")
    namespace.api.delete(path, grace_seconds=1)
    namespace.wait_gone("stubborn", deadline_seconds=60)


def test_containers_of_a_pod_deleted_by_force_end_too(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    pod = namespace.run("forced", shell("c", STUBBORN), terminationGracePeriodSeconds=600)
    uid = pod["metadata"]["uid"]
    assert local_cluster.sandboxes(uid)
    namespace.kubectl("delete", "pod", "forced", "--grace-period=0", "--force")
    namespace.wait_gone("forced", deadline_seconds=5)
    wait_until(
        lambda: not local_cluster.sandboxes(uid),
        deadline_seconds=60,
        else_say=lambda: f"left of the pod: {local_cluster.sandboxes(uid)}",
    )


def test_a_pod_of_the_same_name_follows_one_deleted_by_force(namespace: Namespace) -> None:
    first = namespace.run("again", shell("c", STUBBORN), terminationGracePeriodSeconds=600)
    namespace.kubectl("delete", "pod", "again", "--grace-period=0", "--force")
    namespace.add("again", until_term("c"))
    second = namespace.wait("again", is_ready)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert container(second)["restartCount"] == 0


def test_a_namespace_goes_with_all_its_pods(namespace: Namespace) -> None:
    for number in range(5):
        namespace.add(f"pod-{number}", until_term("c"))
    namespace.wait_all(lambda pods: len(pods) == 5 and all(map(is_ready, pods)))
    namespace.delete()
    namespace.api.wait_gone(f"/api/v1/namespaces/{namespace.name}")
