"""Volumes of CSI drivers that grow: in use, for a pod that comes, and with drivers that fail."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from lab.csi_driver import EXPANDS, NAME, STAGES, LabDriver
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import Scene, an_agent, calls, claiming, describe
from trio_kubelet.k8s import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    ObjectMeta,
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    PersistentVolumeClaimStatus,
    Secret,
    SecretReference,
    Time,
)
from trio_kubelet.k8s.kinds import SECRETS
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.rpc import Code
from trio_kubelet.volumes import csi_volume
from trio_kubelet.volumes.csi_expansion import awaits_node, failed, finished
from trio_kubelet.volumes.csi_records import VolumeKey, stage_place
from trio_kubelet.volumes.plugin import VolumesNotReady

GIB = 1 << 30
ABILITIES = (STAGES, EXPANDS)
SUCCESS = 'MountVolume.NodeExpandVolume succeeded for volume "pv" node'
LOOK_SECONDS = 60.0
A_LOOK_SECONDS = LOOK_SECONDS + 1
"""After so long a volume in use was looked after."""


@pytest.fixture
async def scene(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(csi_volume, "is_mounted", lambda _: True)
    async with trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery, look_seconds=LOOK_SECONDS)
        yield scene
        nursery.cancel_scope.cancel()


def has_size(scene: Scene, size: str, stage: str | None = None) -> None:
    """Have the claim's status say a size, and how far its expansion is."""
    status: dict[str, Any] = {"capacity": {"storage": size}}
    if stage is not None:
        status["allocatedResourceStatuses"] = {"storage": stage}
        status["conditions"] = [{"type": "FileSystemResizePending", "status": "True"}]
    scene.server.patch(
        PERSISTENT_VOLUME_CLAIMS, "data", "default", body={"status": status}, subresource="status"
    )


def grow(scene: Scene, *, stage: str = "NodeResizePending") -> None:
    """Do what a controller does that has enlarged a volume of 1Gi to 2Gi."""
    body = {"spec": {"capacity": {"storage": "2Gi"}}}
    scene.server.patch(PERSISTENT_VOLUMES, "pv", body=body)
    has_size(scene, "1Gi", stage)


def status(scene: Scene) -> PersistentVolumeClaimStatus:
    return scene.server.get(PERSISTENT_VOLUME_CLAIMS, "data", "default").status


def conditions(scene: Scene) -> Mapping[str, str]:
    return {each.type: each.message for each in status(scene).conditions}


def size(scene: Scene) -> str:
    return str(status(scene).capacity["storage"])


def told(scene: Scene, reason: str) -> list[tuple[str, str]]:
    """The events of a reason: what they are about, and their messages."""
    return [
        ("pod" if each.pod is not None else "claim", each.message)
        for each in scene.events
        if each.reason == reason
    ]


def begun(driver: LabDriver) -> int:
    return len(calls(driver, "NodeExpandVolume", "begun"))


async def test_a_volume_in_use_grows_and_claim_and_events_say_so(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.server.create(
        SECRETS, Secret(metadata=ObjectMeta(name="s", namespace="kube-system"), data={"k": b"v"})
    )
    reference = SecretReference(name="s", namespace="kube-system")
    describe(scene, node_expand_secret_ref=reference)
    has_size(scene, "1Gi")
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        volumes = await an_agent(scene)
        for uid in ("a", "b"):
            await volumes.prepare(claiming(uid))
        await trio.sleep(A_LOOK_SECONDS)
        assert begun(driver) == 0
        grow(scene)
        await trio.sleep(A_LOOK_SECONDS)
        (call,) = calls(driver, "NodeExpandVolume")
        stage = stage_place(scene.root, VolumeKey(NAME, "h-1")).path
        target = scene.root / "pods/a/volumes/kubernetes.io~csi/pv/mount"
        assert (call["volume"], call["size"], call["secrets"]) == ("h-1", 2 * GIB, {"k": "v"})
        assert (call["target"], call["staged"]) == (str(target), str(stage))
        assert size(scene) == "2Gi"
        assert not status(scene).allocated_resource_statuses
        assert conditions(scene) == {}
        assert told(scene, "FileSystemResizeSuccessful") == [("pod", SUCCESS), ("claim", SUCCESS)]
        for uid in ("a", "b"):
            await volumes.tear_down(uid)
        grow(scene)
        await trio.sleep(10 * A_LOOK_SECONDS)
        assert begun(driver) == 1, "nobody uses it any more"


async def test_a_pod_waits_until_its_volume_has_grown(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    grow(scene)
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        driver.set_faults(NodeExpandVolume={"fail": "INTERNAL: no"})
        volumes = await an_agent(scene)
        words = (
            'MountVolume.Setup failed while expanding volume for volume "pv" : Expander.NodeExpand '
            "failed to expand the volume : rpc error: code = Internal desc = no"
        )
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(claiming())
        assert status(scene).allocated_resource_statuses == {"storage": "NodeResizeInProgress"}
        assert conditions(scene)["NodeResizeError"] == (
            "failed to expand pvc with Expander.NodeExpand failed to expand the volume : "
            "rpc error: code = Internal desc = no"
        )
        driver.set_faults()
        await trio.sleep(1)
        await volumes.prepare(claiming())
        assert size(scene) == "2Gi"
        assert conditions(scene) == {}
        assert len(calls(driver, "NodePublishVolume")) == 2, "it was not published for certain"


async def test_a_volume_that_was_published_and_not_expanded_before_a_kill_is_expanded(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    grow(scene)
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        driver.set_faults(NodeExpandVolume={"hang": True})
        volumes = await an_agent(scene)
        with trio.move_on_after(5):
            await volumes.prepare(claiming())
        assert (len(calls(driver, "NodePublishVolume")), begun(driver)) == (1, 1)
        driver.set_faults()
        await (await an_agent(scene)).prepare(claiming())
        assert size(scene) == "2Gi"
        assert len(calls(driver, "NodeExpandVolume")) == 1


async def test_a_driver_that_hangs_is_given_up_and_asked_again(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    has_size(scene, "1Gi")
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        driver.set_faults(NodeExpandVolume={"hang": True})
        grow(scene)
        await trio.sleep(A_LOOK_SECONDS)
        assert begun(driver) == 1
        await volumes.prepare(claiming())  # The pod's syncs go on.
        await trio.sleep(121)
        ((_, message),) = told(scene, "VolumeResizeFailed")
        assert message.startswith(
            'NodeExpandVolume.NodeExpandVolume failed for volume "pv" : Expander.NodeExpand '
            "failed to expand the volume : rpc error: code = DeadlineExceeded"
        )
        assert "NodeResizeError" not in conditions(scene), "it may have grown"
        driver.set_faults()
        await trio.sleep(200)
        assert size(scene) == "2Gi"


async def test_a_volume_that_cannot_be_that_large_is_left_to_the_controller(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    grow(scene)
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        driver.set_faults(NodeExpandVolume={"fail": "OUT_OF_RANGE: too large"})
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(claiming())
        assert status(scene).allocated_resource_statuses == {"storage": "NodeResizeInfeasible"}
        await trio.sleep(1)
        await volumes.prepare(claiming())
        await trio.sleep(10 * A_LOOK_SECONDS)
        assert begun(driver) == 1
        assert size(scene) == "1Gi"


@pytest.mark.parametrize("code", ["FAILED_PRECONDITION", "UNIMPLEMENTED"])
@pytest.mark.parametrize("in_use", [False, True])
async def test_a_driver_that_refuses_is_asked_again_when_it_comes_back(
    autojump_clock: MockClock, scene: Scene, code: str, in_use: bool
) -> None:
    describe(scene)
    has_size(scene, "1Gi")
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        volumes = await an_agent(scene)
        if in_use:
            await volumes.prepare(claiming())
        grow(scene)
        driver.set_faults(NodeExpandVolume={"fail": f"{code}: in use"})
        await volumes.prepare(claiming())
        await trio.sleep(10 * A_LOOK_SECONDS)
        events = told(scene, "VolumeResizeFailed")
        assert len(events) == begun(driver) == (1 if in_use else 2)
        assert all(message.endswith("in use") for _, message in events)
        assert conditions(scene)["NodeResizeError"].endswith("in use")
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        driver.set_faults()
        await trio.sleep(1)
        assert size(scene) == "2Gi"


async def test_a_driver_without_expansion_keeps_no_pod_and_is_named(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    grow(scene)
    with scene.driver_in_process(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        assert begun(driver) == 0
        ((_, message),) = told(scene, "VolumeResizeFailed")
        assert message.endswith(f"NodeExpand is not supported by the CSI driver {NAME}")


async def test_a_volume_that_another_node_has_expanded_first_grows_here_too(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene, volume={"access_modes": ("ReadWriteMany",)})
    has_size(scene, "1Gi")
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        await trio.sleep(A_LOOK_SECONDS)
        grow(scene)
        body = {
            "capacity": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": None},
            "conditions": [{"type": "FileSystemResizePending", "$patch": "delete"}],
        }
        scene.server.patch(
            PERSISTENT_VOLUME_CLAIMS, "data", "default", body={"status": body}, subresource="status"
        )
        version = claim(scene).metadata.resource_version
        await trio.sleep(10 * A_LOOK_SECONDS)
        (call,) = calls(driver, "NodeExpandVolume")
        assert call["size"] == 2 * GIB
        assert claim(scene).metadata.resource_version == version


def claim(scene: Scene) -> PersistentVolumeClaim:
    return scene.server.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")


async def test_a_pod_that_only_reads_has_the_volume_as_it_is(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    grow(scene)
    pod = claiming(read_only=True)
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        await (await an_agent(scene)).prepare(pod)
        await trio.sleep(A_LOOK_SECONDS)
        assert begun(driver) == 0
        words = (
            'MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system'
        )
        assert told(scene, "FileSystemResizeFailed") == [("pod", words)]


async def test_a_size_beyond_all_bounds_and_a_claim_that_has_gone_disturb_nobody(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    has_size(scene, "1Gi")
    with scene.driver_in_process(capabilities=ABILITIES) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        grow(scene)
        body = {"spec": {"capacity": {"storage": "9999999999E"}}}
        scene.server.patch(PERSISTENT_VOLUMES, "pv", body=body)
        await trio.sleep(A_LOOK_SECONDS)
        (call,) = calls(driver, "NodeExpandVolume")
        assert call["size"] == 2**63 - 1
        scene.server.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        await trio.sleep(10 * A_LOOK_SECONDS)
        await volumes.prepare(claiming())
        await volumes.tear_down(claiming().metadata.uid)
        assert driver.published() == []


@pytest.mark.parametrize(
    ("stage", "condition", "waits"),
    [
        ("NodeResizePending", "", True),
        ("NodeResizeInProgress", "", True),
        ("NodeResizeInfeasible", "FileSystemResizePending", False),
        ("ControllerResizeInProgress", "FileSystemResizePending", False),
        ("", "FileSystemResizePending", True),
        ("", "Resizing", False),
        ("nonsense", "", False),
    ],
)
def test_the_node_is_waited_for_where_the_status_says_so(
    stage: str, condition: str, waits: bool
) -> None:
    assert awaits_node(a_claim(stage, condition)) is waits


def a_claim(stage: str, *types: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        status=PersistentVolumeClaimStatus(
            allocated_resource_statuses={"storage": stage} if stage else {},
            conditions=tuple(
                PersistentVolumeClaimCondition(type=each, status="True") for each in types if each
            ),
        )
    )


def types(change: Mapping[str, Any]) -> list[str]:
    return [each["type"] for each in change["conditions"]]


def test_only_conditions_of_a_resize_are_removed_when_it_is_done() -> None:
    pending = a_claim("NodeResizePending", "Unused", "Resizing", "NodeResizeError")
    change = finished(pending, Quantity("2Gi"))
    assert types(change) == ["Unused"]
    assert change["capacity"] == {"storage": "2Gi"}


def test_an_error_has_one_condition_and_is_final_only_where_the_code_says_so() -> None:
    now = Time.from_ns(0)
    pending = a_claim("NodeResizeInProgress", "Unused", "NodeResizeError")
    assert failed(pending, Code.UNAVAILABLE, "no", now) is None
    change = failed(pending, Code.INTERNAL, "no", now)
    assert change is not None
    assert types(change) == ["Unused", "NodeResizeError"]
    assert "allocatedResourceStatuses" not in change
    change = failed(pending, Code.INVALID_ARGUMENT, "no", now)
    assert change is not None
    assert change["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
