"""Which pods a node under pressure takes."""

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_admission, make_pod
from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import Pod
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.sync.admission.node_match import refused_under_pressure

MEMORY, DISK, PID = Pressures(memory=True), Pressures(disk=True), Pressures(pid=True)


def tolerating(key: str, **fields: str) -> Pod:
    return make_pod(tolerations=[{"key": key, "operator": "Exists", **fields}])


BEST_EFFORT = make_pod()
BURSTABLE = make_pod(requests={"memory": "1Mi"})
GUARANTEED = make_pod(requests={"memory": "1Mi", "cpu": "1"}, limited=True)
CRITICAL = make_pod(priority=2_000_000_000)
STATIC = make_pod(static=True)
TOLERANT = tolerating("node.kubernetes.io/memory-pressure")
OTHERWISE = tolerating("node.kubernetes.io/disk-pressure")
NOT_SCHEDULED = tolerating("node.kubernetes.io/memory-pressure", effect="NoExecute")


@pytest.mark.parametrize(
    ("pod", "pressures", "refused"),
    [
        (BEST_EFFORT, None, ""),
        (BEST_EFFORT, Pressures(), ""),
        (BEST_EFFORT, MEMORY, "[MemoryPressure]"),
        (BURSTABLE, MEMORY, ""),
        (GUARANTEED, MEMORY, ""),
        (TOLERANT, MEMORY, ""),
        (OTHERWISE, MEMORY, "[MemoryPressure]"),
        (NOT_SCHEDULED, MEMORY, "[MemoryPressure]"),
        (BEST_EFFORT, DISK, "[DiskPressure]"),
        (GUARANTEED, DISK, "[DiskPressure]"),
        (TOLERANT, DISK, "[DiskPressure]"),
        (OTHERWISE, DISK, "[DiskPressure]"),
        (GUARANTEED, PID, "[PIDPressure]"),
        (BURSTABLE, Pressures(memory=True, disk=True), "[MemoryPressure DiskPressure]"),
        *((pod, Pressures(memory=True, disk=True), "") for pod in (CRITICAL, STATIC)),
    ],
)
def test_under_pressure_only_some_are_let_in(
    pod: Pod, pressures: Pressures | None, refused: str
) -> None:
    wanted = Rejection(
        reason="Evicted", message=f"The node had condition: {refused}. ", is_paced=True
    )
    assert refused_under_pressure(pod, pressures) == (wanted if refused else None)


def test_pressure_is_told_before_everything_else() -> None:
    def check(pod: Pod) -> Rejection | None:
        return refused_under_pressure(pod, DISK)

    admission = make_admission(under_pressure=check)
    rejection = admission(make_pod(requests={"cpu": "64"}), ())
    assert isinstance(rejection, Rejection)
    assert rejection.reason == "Evicted"
