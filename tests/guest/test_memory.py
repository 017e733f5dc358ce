"""Memory on cgroup v2 with systemd: protected, throttled, swapped and reserved, by the settings."""

from collections.abc import Iterator

import pytest

from lab.agent import Json, pod_manifest
from lab.images import SLEEPER
from tests.guest.node import UNIT, Node

MIB = 1 << 20
PAGE = 4096
SWAP_MIB = 32
GUARANTEED = {"limits": {"cpu": "100m", "memory": "32Mi"}}
BURSTABLE = {"requests": {"memory": "16Mi"}, "limits": {"memory": "64Mi"}}
FILES = ("memory.min", "memory.low", "memory.high", "memory.swap.max")
QOS = "kubepods.slice"
BURSTABLE_SLICE = f"{QOS}/kubepods-burstable.slice"
SETTINGS = {
    "failSwapOn": False,
    "memorySwap": {"swapBehavior": "LimitedSwap"},
    "memoryReservationPolicy": "TieredReservation",
    "featureGates": {"MemoryQoS": True},
    "systemReserved": {"cpu": "100m"},
    "systemReservedCgroup": "/system.slice",
    "enforceNodeAllocatable": ["pods", "system-reserved-compressible"],
}


@pytest.fixture(scope="module")
def pods(node: Node) -> Iterator[dict[str, Json]]:
    """A guaranteed and a burstable pod on a node with swap and these settings."""
    with node.configured(**SETTINGS):
        node.guest.run(
            f"dd if=/dev/zero of=/swap bs=1M count={SWAP_MIB} status=none; chmod 600 /swap; "
            "busybox mkswap /swap >/dev/null; swapon /swap"
        )
        node.systemctl("restart", UNIT)
        resources = {"guaranteed": GUARANTEED, "burstable": BURSTABLE}
        for name, asked_for in resources.items():
            node.add(pod_manifest(name, {"name": "c", "image": SLEEPER, "resources": asked_for}))
        yield {name: node.wait_for_pod(name) for name in resources}
        node.remove(*resources)
        node.guest.run("swapoff /swap; rm /swap")
    node.systemctl("set-property", "--runtime", "system.slice", "CPUWeight=")


def values(node: Node, cgroup: str) -> dict[str, str]:
    """What the files of a cgroup say."""
    folder = f"/sys/fs/cgroup/{cgroup}"
    said = node.guest.run("cat", *(f"{folder}/{name}" for name in FILES)).split()
    return dict(zip(FILES, said, strict=True))


def slice_of(pod: Json, parent: str) -> str:
    """The slice of a pod; `parent` is that of its class."""
    name = parent.rpartition("/")[2].removesuffix(".slice")
    return f"{parent}/{name}-pod{pod['metadata']['uid'].replace('-', '_')}.slice"


def scope_of(pod: Json, parent: str) -> str:
    """The cgroup of its only container."""
    (status,) = pod["status"]["containerStatuses"]
    identifier = status["containerID"].partition("://")[2]
    return f"{slice_of(pod, parent)}/cri-containerd-{identifier}.scope"


def test_what_pods_ask_for_is_protected_in_all_cgroups_down_to_the_container(
    node: Node, pods: dict[str, Json]
) -> None:
    found = {
        "all": values(node, QOS),
        "burstable": values(node, BURSTABLE_SLICE),
        "guaranteed pod": values(node, slice_of(pods["guaranteed"], QOS)),
        "burstable pod": values(node, slice_of(pods["burstable"], BURSTABLE_SLICE)),
        "guaranteed container": values(node, scope_of(pods["guaranteed"], QOS)),
        "burstable container": values(node, scope_of(pods["burstable"], BURSTABLE_SLICE)),
    }
    assert {
        name: (int(each["memory.min"]) // MIB, int(each["memory.low"]) // MIB)
        for name, each in found.items()
    } == {
        "all": (48, 16),
        "burstable": (0, 16),
        "guaranteed pod": (32, 0),
        "burstable pod": (0, 16),
        "guaranteed container": (32, 0),
        "burstable container": (0, 16),
    }
    throttled_at = int(16 * MIB + 48 * MIB * 0.9) // PAGE * PAGE
    assert found["burstable container"]["memory.high"] == str(throttled_at)
    assert found["guaranteed container"]["memory.high"] == "max"


def test_static_pods_are_critical_and_never_swap(node: Node, pods: dict[str, Json]) -> None:
    for name, parent in (("guaranteed", QOS), ("burstable", BURSTABLE_SLICE)):
        assert values(node, scope_of(pods[name], parent))["memory.swap.max"] == "0"


def test_the_systems_slice_weighs_what_is_reserved_for_it(
    node: Node, pods: dict[str, Json]
) -> None:
    assert node.guest.read("/sys/fs/cgroup/system.slice/cpu.weight").strip() == b"17"
    told = "Updated limits on system reserved cgroup /system.slice"
    assert told in node.log()


def test_the_protection_goes_with_the_setting(node: Node, pods: dict[str, Json]) -> None:
    """The last test: the pods keep running, with all else as it was."""
    before = node.containers()
    slices = (
        QOS,
        BURSTABLE_SLICE,
        slice_of(pods["guaranteed"], QOS),
        slice_of(pods["burstable"], BURSTABLE_SLICE),
    )

    def protections() -> set[str]:
        found = (values(node, each) for each in slices)
        return {each[name] for each in found for name in ("memory.min", "memory.low")}

    with node.configured(**{**SETTINGS, "memoryReservationPolicy": "None"}):
        node.wait_for(lambda: protections() == {"0"}, lambda: f"there are {protections()}")
        assert node.containers() == before
