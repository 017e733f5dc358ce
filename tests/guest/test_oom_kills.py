"""On cgroup v2, too, containers that the kernel kills for their memory say OOMKilled."""

from lab.agent import Json, pod_manifest
from lab.images import BUSYBOX, SLEEPER
from tests.guest.node import UNIT, Node
from tests.oom_kills import rounds

PODS = ("hungry-a", "hungry-b")
HUNGRY = tuple(f"c{number}" for number in range(3))
OTHER = "other"
EXPECTED = {**dict.fromkeys(HUNGRY, ("OOMKilled", 137)), OTHER: ("Error", 137)}


def ends(pod: Json) -> dict[str, tuple[str, int]]:
    """Reason and exit code of each container that has ended."""
    return {
        status["name"]: (end["reason"], end["exitCode"])
        for status in pod["status"].get("containerStatuses", ())
        if (end := status["state"].get("terminated"))
    }


def container_id(pod: Json, name: str) -> str:
    """The id of a container in the runtime."""
    (found,) = (each for each in pod["status"]["containerStatuses"] if each["name"] == name)
    return str(found["containerID"]).partition("://")[2]


def hungry(name: str, memory: str = "32Mi") -> Json:
    """A container that takes more than it may, at once, with room for the runc that starts it."""
    limits = {"limits": {"memory": memory}} if memory else {}
    return {
        "name": name,
        "image": BUSYBOX,
        "command": ["tail", "/dev/zero"],
        "resources": limits,
    }


def test_who_is_killed_at_once_for_its_memory_says_so_and_who_is_killed_otherwise_does_not(
    node: Node,
) -> None:
    for number in rounds(len(PODS) * len(HUNGRY)):
        names = [f"{name}-{number}" for name in PODS]
        for name in names:
            containers = ({"name": OTHER, "image": SLEEPER}, *map(hungry, HUNGRY))
            node.add(pod_manifest(name, *containers, restartPolicy="Never"))
        for name in names:
            pod = node.wait_for_pod(name, lambda pod: len(ends(pod)) == len(HUNGRY))
            node.ctr("tasks", "kill", "--signal", "KILL", container_id(pod, OTHER))
        for name in names:
            pod = node.wait_for_pod(name, lambda pod: OTHER in ends(pod))
            assert ends(pod) == EXPECTED, pod["status"]
        if number == 0:
            node.systemctl("restart", UNIT)
        for name in names:
            pod = node.wait_for_pod(name, lambda pod: OTHER in ends(pod))
            assert ends(pod) == EXPECTED, pod["status"]
        node.remove(*names)


def test_the_limit_of_a_pod_counts_as_well(node: Node) -> None:
    manifest = pod_manifest(
        "small",
        hungry("c", memory=""),
        restartPolicy="Never",
        resources={"limits": {"memory": "40Mi", "cpu": "1"}},
    )
    node.add(manifest)
    assert ends(node.wait_for_pod("small", ends)) == {"c": ("OOMKilled", 137)}
    node.remove("small")
