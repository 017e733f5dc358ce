"""Volumes that a CSI driver makes for a pod: asked for once, given back once, never forgotten."""

import errno
import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from lab.csi_driver import NAME
from state_machines.backoff import BackoffPolicy
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    EPHEMERAL,
    UID,
    Scene,
    a_pod,
    an_agent,
    calls,
    claiming,
    describe,
)
from trio_kubelet.k8s import (
    CSIDriverSpec,
    CSIVolumeSource,
    EmptyDirVolumeSource,
    LocalObjectReference,
    ObjectMeta,
    Pod,
    Secret,
    SecretVolumeSource,
    Volume,
    VolumeMount,
)
from trio_kubelet.k8s.kinds import SECRETS
from trio_kubelet.kernel.mountinfo import mount_points, mounts_at_or_below
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.volumes import back_offs, csi_requests, csi_volume, doubt_marks
from trio_kubelet.volumes.csi_records import read_record
from trio_kubelet.volumes.csi_requests import volume_handle
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady

BOTH = CSIDriverSpec(attach_required=False, volume_lifecycle_modes=("Persistent", "Ephemeral"))


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()
    for each in mounts_at_or_below(scene.root.resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    monkeypatch.setattr(back_offs, "RETRY", policy)


def with_volumes(count: int) -> Pod:
    """A pod with so many volumes of the driver, each of its own."""
    pod = a_pod()
    (volume,), (container,) = pod.spec.volumes, pod.spec.containers
    names = [f"v{number}" for number in range(count)]
    mounts = tuple(VolumeMount(name=name, mount_path=f"/{name}") for name in names)
    spec = evolve(
        pod.spec,
        volumes=tuple(evolve(volume, name=name) for name in names),
        containers=(evolve(container, volume_mounts=mounts),),
    )
    return evolve(pod, spec=spec)


def with_others(*volumes: Volume) -> Pod:
    """A pod with a volume of the driver, and others beside it."""
    pod = a_pod()
    (container,) = pod.spec.containers
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in volumes)
    spec = evolve(
        pod.spec,
        volumes=(*pod.spec.volumes, *volumes),
        containers=(evolve(container, volume_mounts=(*container.volume_mounts, *mounts)),),
    )
    return evolve(pod, spec=spec)


async def test_a_volume_is_published_once_and_given_back_once(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        volumes = scene.agent()
        for _ in range(3):
            mounted = await volumes.prepare(scene.pod)
            assert mounted["v"].host_path == scene.target
        (call,) = calls(driver, "NodePublishVolume")
        assert call["target"] == scene.target
        assert call["volume"] == volume_handle(UID, "v")
        assert call["context"] == {"size": "1"}
        assert call["access_mode"] == csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_WRITER
        for _ in range(2):
            await volumes.tear_down(UID)
        (call,) = calls(driver, "NodeUnpublishVolume")
        assert (call["target"], call["volume"]) == (scene.target, volume_handle(UID, "v"))
        assert driver.published() == []
        assert not scene.folder.exists()
        assert scene.marks() == []


async def test_the_record_is_that_of_the_go_kubelet(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver():
        await scene.agent().prepare(scene.pod)
    record = json.loads((scene.folder / "vol_data.json").read_text())
    assert record.pop("attachmentID").startswith("csi-")
    assert record == {
        "specVolID": "v",
        "volumeHandle": volume_handle(UID, "v"),
        "driverName": NAME,
        "nodeName": "node",
        "volumeLifecycleMode": "Ephemeral",
    }


async def test_a_volume_that_the_go_kubelet_published_is_given_back(scene: Scene) -> None:
    (scene.folder / "mount").mkdir(parents=True)
    told = {"driverName": NAME, "volumeHandle": "csi-1", "specVolID": "v"}
    (scene.folder / "vol_data.json").write_text(json.dumps(told))
    async with scene.driver() as driver:
        await scene.agent().tear_down(UID)
        assert [call["volume"] for call in calls(driver, "NodeUnpublishVolume")] == ["csi-1"]
    assert not scene.folder.exists()


@pytest.mark.parametrize("fault", [{"fail": "INTERNAL: no"}, {"lose_answer": True}])
async def test_a_call_without_a_good_answer_is_made_again_and_undone(
    scene: Scene, fault: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        volumes = scene.agent()
        # Long enough for a busy machine, and only when the driver has registered.
        monkeypatch.setattr("trio_kubelet.csi.driver.CALL_SECONDS", 2.0)
        driver.set_faults(NodePublishVolume=fault)
        with pytest.raises(VolumesNotReady, match='failed for volume "v" : rpc error: code = '):
            await volumes.prepare(scene.pod)
        assert scene.marks() == [f"{UID}~v"]
        driver.set_faults(NodeUnpublishVolume=fault)
        await trio.sleep(0.01)  # the back-off
        await volumes.prepare(scene.pod)
        assert scene.marks() == []
        with pytest.raises(VolumeBusy, match="rpc error: code = "):
            await volumes.tear_down(UID)
        assert read_record(scene.folder) is not None
        driver.set_faults()
        await volumes.tear_down(UID)
        assert driver.published() == []
        assert not scene.folder.exists()
        assert scene.marks() == []


async def test_a_pod_that_ends_while_its_driver_hangs_gives_the_volume_back(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        volumes = scene.agent()
        driver.set_faults(NodePublishVolume={"hang": True})
        with trio.move_on_after(60) as sync:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(volumes.prepare, scene.pod)
                while not calls(driver, "NodePublishVolume", "begun"):
                    await trio.testing.wait_all_tasks_blocked(0.01)
                sync.cancel()
        await volumes.tear_down(UID)
        assert len(calls(driver, "NodeUnpublishVolume")) == 1
    assert not scene.folder.exists()


async def test_twenty_volumes_of_a_pod_are_published_and_taken_away_side_by_side(
    scene: Scene,
) -> None:
    scene.describe(EPHEMERAL)
    scene.pod = with_volumes(20)
    async with scene.driver() as driver:
        volumes = scene.agent()
        for method, work in (
            ("NodePublishVolume", partial(volumes.prepare, scene.pod)),
            ("NodeUnpublishVolume", partial(volumes.tear_down, UID)),
        ):
            driver.set_faults(**{method: {"hang": True}})
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(work)
                    while len(calls(driver, method, "begun")) < 20:
                        await trio.testing.wait_all_tasks_blocked(0.01)
                    nursery.cancel_scope.cancel()


def with_two_of_a_name() -> Pod:
    """A pod with a volume of its own whose name is that of the volume of its claim."""
    pod, other = a_pod(), claiming()
    (own,), (claimed,) = pod.spec.volumes, other.spec.volumes
    (container,) = pod.spec.containers
    mounts = tuple(VolumeMount(name=name, mount_path=f"/{name}") for name in ("pv", "v"))
    containers = (evolve(container, volume_mounts=mounts),)
    volumes = (evolve(own, name="pv"), claimed)
    return evolve(pod, spec=evolve(pod.spec, volumes=volumes, containers=containers))


async def test_of_two_volumes_with_the_same_name_in_folders_the_second_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(scene, BOTH)
    scene.pod = with_two_of_a_name()
    async with scene.driver() as driver:
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady, match="~csi/pv is in use for the volume"):
            await volumes.prepare(scene.pod)
        (published,) = calls(driver, "NodePublishVolume")
        # An agent that starts later finds on the disk which of the two it is.
        monkeypatch.setattr(csi_volume, "is_mounted", lambda _: True)
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady, match="~csi/pv is in use for the volume"):
            await volumes.prepare(scene.pod)
        await volumes.tear_down(UID)
        (unpublished,) = calls(driver, "NodeUnpublishVolume")
        assert unpublished["volume"] == published["volume"]
        assert driver.published() == []


async def test_a_volume_that_is_being_published_keeps_its_record_from_one_of_the_same_name(
    scene: Scene,
) -> None:
    describe(scene, BOTH)
    scene.pod = with_two_of_a_name()
    folder = scene.folder.with_name("pv")
    async with scene.driver() as driver:
        volumes = await an_agent(scene)
        driver.set_faults(NodePublishVolume={"hang": True})
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(volumes.prepare, scene.pod)
                while not calls(driver, "NodePublishVolume", "begun"):
                    await trio.testing.wait_all_tasks_blocked(0.01)
                await trio.testing.wait_all_tasks_blocked(0.1)
                nursery.cancel_scope.cancel()
        (begun,) = calls(driver, "NodePublishVolume", "begun")
        record = read_record(folder)
        assert record is not None
        assert record.key.handle == begun["volume"]
        driver.set_faults()
        await volumes.tear_down(UID)
        (unpublished,) = calls(driver, "NodeUnpublishVolume")
        assert unpublished["volume"] == begun["volume"]


async def test_an_agent_that_was_killed_in_a_call_is_not_sure_and_asks_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_volume, "is_mounted", lambda _: True)
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        driver.set_faults(NodePublishVolume={"fail": "INTERNAL: killed"})
        with pytest.raises(VolumesNotReady):
            await scene.agent().prepare(scene.pod)
        driver.set_faults()
        # There may be a mount, but the mark says that the driver had not done its work.
        await scene.agent().prepare(scene.pod)
        assert len(calls(driver, "NodePublishVolume")) == 1
        # This one knows from mount and record that there is nothing to do.
        await scene.agent().prepare(scene.pod)
        assert len(calls(driver, "NodePublishVolume")) == 1


@pytest.mark.parametrize("is_mounted", [True, False])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
async def test_a_volume_is_given_back_though_the_disk_takes_no_mark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int, is_mounted: bool
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(csi_volume, "is_mounted", lambda _: is_mounted)
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        await scene.agent().prepare(scene.pod)
        monkeypatch.setattr(doubt_marks, "write_whole", refuse)
        driver.set_faults(NodeUnpublishVolume={"fail": "INTERNAL: killed"})
        with pytest.raises(VolumeBusy, match="killed"):
            await scene.agent().tear_down(UID)
        driver.set_faults()
        await scene.agent().tear_down(UID)  # by the next agent, which finds no mark
        assert driver.published() == []
        assert not scene.folder.exists()
        with pytest.raises(VolumesNotReady, match=os.strerror(number)):
            await scene.agent().prepare(scene.pod)
        assert len(calls(driver, "NodePublishVolume")) == 1, "no call is begun without a mark"


async def test_after_a_reboot_a_folder_that_is_left_is_no_volume(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        await scene.agent().prepare(scene.pod)
        await scene.agent().prepare(scene.pod)  # nothing is mounted there
        assert len(calls(driver, "NodePublishVolume")) == 2


async def test_a_volume_of_a_driver_that_is_away_waits_and_keeps_its_record(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_requests, "DRIVER_SECONDS", 0.1)
    scene.describe(EPHEMERAL)
    volumes = scene.agent()
    words = f"driver name {NAME} not found in the list of registered CSI drivers"
    with pytest.raises(VolumesNotReady, match=words):
        await volumes.prepare(scene.pod)
    async with scene.driver() as driver:
        await volumes.prepare(scene.pod)
    with pytest.raises(VolumeBusy, match=words):
        await volumes.tear_down(UID)
    assert driver.published() == [scene.target]
    async with scene.driver():
        await volumes.tear_down(UID)
    assert driver.published() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_what_is_the_pods_own_is_removed_though_a_driver_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_requests, "DRIVER_SECONDS", 0.1)
    secret = Secret(metadata=ObjectMeta(name="s", namespace="default"), data={"k": b"v"})
    scene.server.create(SECRETS, secret)
    scene.describe(EPHEMERAL)
    scene.privileged = True
    scene.pod = with_others(
        Volume(name="disk", empty_dir=EmptyDirVolumeSource()),
        Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory")),
        Volume(name="secret", secret=SecretVolumeSource(secret_name="s")),
    )
    volumes, root = scene.agent(), scene.root.resolve()
    async with scene.driver(mounts=True):
        mounted = await volumes.prepare(scene.pod)
        kept = Path(mounted["v"].host_path) / "kept"
        kept.touch()
        assert len(mounts_at_or_below(root, mount_points())) == 3
    with pytest.raises(VolumeBusy, match="not found in the list of registered CSI drivers"):
        await volumes.tear_down(UID)
    assert [str(each.path) for each in mounts_at_or_below(root, mount_points())] == [scene.target]
    assert kept.exists()
    assert [*(scene.root / "pods" / UID / "volumes").glob("*/*")] == [scene.folder]
    async with scene.driver(mounts=True):
        await volumes.remove_pod(UID)
    assert mounts_at_or_below(root, mount_points()) == ()
    assert await volumes.pods_on_disk() == set()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, r'volume mode "Ephemeral" not supported by driver .* \(no CSIDriver object\)'),
        (
            CSIDriverSpec(volume_lifecycle_modes=("Persistent",)),
            r'"Ephemeral" not supported by driver .* \(only supports \["Persistent"\]\)',
        ),
    ],
)
async def test_a_driver_that_makes_no_volumes_for_pods_is_not_asked(
    scene: Scene, spec: CSIDriverSpec | None, words: str
) -> None:
    if spec is not None:
        scene.describe(spec)
    async with scene.driver() as driver:
        with pytest.raises(VolumesNotReady, match=words):
            await scene.agent().prepare(scene.pod)
        assert calls(driver, "NodePublishVolume", "begun") == []


async def test_a_driver_is_told_of_the_pod_and_gets_secrets(scene: Scene) -> None:
    scene.describe(CSIDriverSpec(volume_lifecycle_modes=("Ephemeral",), pod_info_on_mount=True))
    secret = Secret(metadata=ObjectMeta(name="s", namespace="default"), data={"k": b"v"})
    scene.server.create(SECRETS, secret)
    ref = LocalObjectReference(name="s")
    scene.pod = a_pod(
        CSIVolumeSource(driver=NAME, read_only=True, fs_type="ext4", node_publish_secret_ref=ref)
    )
    async with scene.driver() as driver:
        mounted = await scene.agent().prepare(scene.pod)
        assert mounted["v"].read_only
        (call,) = calls(driver, "NodePublishVolume")
    assert call["secrets"] == {"k": "v"}
    assert (call["read_only"], call["fs_type"]) == (True, "ext4")
    assert call["context"] == {
        "csi.storage.k8s.io/pod.name": "p",
        "csi.storage.k8s.io/pod.namespace": "default",
        "csi.storage.k8s.io/pod.uid": UID,
        "csi.storage.k8s.io/serviceAccount.name": "sa",
        "csi.storage.k8s.io/ephemeral": "true",
    }


@pytest.mark.parametrize("has_record", [True, False])
async def test_a_record_that_was_being_written_at_the_end_is_not_in_the_way(
    scene: Scene, *, has_record: bool
) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver():
        volumes = scene.agent()
        await volumes.prepare(scene.pod)
        (scene.folder / "vol_data.json").rename(scene.folder / ".vol_data.json.new")
        if has_record:
            await scene.agent().prepare(scene.pod)
            (scene.folder / ".vol_data.json.new").touch()
        await scene.agent().tear_down(UID)
    assert not scene.folder.exists()
    assert scene.marks() == []


def test_the_handle_of_a_volume_follows_from_pod_and_name() -> None:
    assert volume_handle("a", "b") == volume_handle("a", "b") != volume_handle("a", "c")


@pytest.mark.parametrize("selinux", [True, False])
@pytest.mark.parametrize("takes_labels", [True, False])
async def test_files_that_take_labels_are_to_be_labelled_on_a_node_with_selinux(
    scene: Scene, selinux: bool, takes_labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_volume, "is_mounted", lambda _: True)
    monkeypatch.setattr(csi_volume, "takes_labels", lambda _: takes_labels)
    scene.describe(EPHEMERAL)
    scene.selinux = selinux
    async with scene.driver():
        for _ in range(2):
            mounted = await scene.agent().prepare(scene.pod)
            assert mounted["v"].selinux_relabel is (selinux and takes_labels)


async def test_a_volume_that_nobody_may_write_to_is_not_labelled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_volume, "takes_labels", lambda _: True)
    scene.describe(EPHEMERAL)
    scene.selinux = True
    scene.pod = a_pod(CSIVolumeSource(driver=NAME, read_only=True))
    async with scene.driver():
        assert not (await scene.agent().prepare(scene.pod))["v"].selinux_relabel
