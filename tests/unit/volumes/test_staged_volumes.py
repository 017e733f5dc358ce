"""Persistent volumes of CSI drivers: staged once for all pods, undone once after the last one."""

import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from lab.csi_driver import NAME, STAGES
from state_machines.backoff import BackoffPolicy
from state_machines.volume import STAGE, StageEvent, StageState
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    ATTACHED,
    NOT_ATTACHED,
    UID,
    Scene,
    an_agent,
    calls,
    claiming,
    describe,
    order,
)
from trio_kubelet.k8s import (
    VOLUME_ATTACHMENTS,
    AttachedVolume,
    Node,
    NodeStatus,
    ObjectMeta,
    Secret,
    SecretReference,
    VolumeAttachment,
    VolumeAttachmentStatus,
)
from trio_kubelet.k8s.kinds import SECRETS
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.volumes import (
    csi_requests,
    csi_stages,
    csi_volume,
    doubt_marks,
    staged_volumes,
)
from trio_kubelet.volumes.csi_records import (
    StagePlace,
    VolumeKey,
    attachment_name,
    stage_place,
)
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady
from trio_kubelet.volumes.staged_volumes import next_step

KEY = VolumeKey(NAME, "h-1")


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_volumes, "RETRY", retry(0.01))
    monkeypatch.setattr(csi_requests, "DRIVER_SECONDS", 0.1)


def retry(seconds: float) -> BackoffPolicy:
    return BackoffPolicy(initial_seconds=seconds, cap_seconds=seconds)


async def until_unused(scene: Scene) -> None:
    """Wait until the node has no volume of a driver any more."""
    folder, marks = stage_place(scene.root, KEY).folder, scene.root / "csi_calls/staged"
    with trio.fail_after(20):
        while scene.staged.in_use() or folder.exists() or any(marks.glob("*")):
            await trio.testing.wait_all_tasks_blocked(0.01)


def target(scene: Scene, uid: str) -> str:
    return str(scene.root / "pods" / uid / "volumes/kubernetes.io~csi/pv/mount")


async def test_a_volume_is_staged_once_for_its_pods_and_unstaged_after_the_last(
    scene: Scene,
) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        for uid in ("a", "b"):
            for _ in range(2):
                mounted = await volumes.prepare(claiming(uid))
                assert mounted["v"].host_path == target(scene, uid)
        assert order(driver) == ["Stage", "Publish", "Publish"]
        place = stage_place(scene.root, KEY)
        assert place.path.is_relative_to(scene.root / "plugins/kubernetes.io/csi" / NAME)
        for call in calls(driver, "NodePublishVolume"):
            assert (call["volume"], call["staged"]) == ("h-1", str(place.path))
        assert scene.staged.in_use() == ()
        await volumes.tear_down("a")
        await volumes.tear_down("b")
        await until_unused(scene)
        assert order(driver)[3:] == ["Unpublish", "Unpublish", "Unstage"]
        assert not any((scene.root / "csi_calls").rglob("*~*"))


async def test_a_claim_that_a_pod_names_twice_is_published_once(scene: Scene) -> None:
    describe(scene)
    once = claiming()
    (container,), (volume,) = once.spec.containers, once.spec.volumes
    mounts = tuple(evolve(each, name="w", mount_path="/w") for each in container.volume_mounts)
    other = evolve(container, name="d", volume_mounts=mounts)
    spec = evolve(
        once.spec, containers=(container, other), volumes=(volume, evolve(volume, name="w"))
    )
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        mounted = await volumes.prepare(evolve(once, spec=spec))
        assert mounted["v"].host_path == mounted["w"].host_path
        assert order(driver) == ["Stage", "Publish"]
        assert scene.marks() == ["staged"]
        await volumes.tear_down(UID)
        await until_unused(scene)
        assert order(driver)[2:] == ["Unpublish", "Unstage"]


async def test_a_driver_that_stages_nothing_is_only_asked_to_publish(scene: Scene) -> None:
    describe(scene)
    async with scene.driver() as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        (call,) = calls(driver, "NodePublishVolume")
        assert call["staged"] == ""
        await volumes.tear_down(UID)
        await until_unused(scene)
        assert order(driver) == ["Publish", "Unpublish"]


async def test_the_driver_is_told_what_volume_and_cluster_say(scene: Scene) -> None:
    secret = SecretReference(name="s", namespace="storage")
    describe(
        scene,
        evolve(NOT_ATTACHED, pod_info_on_mount=True),
        {"access_modes": ("ReadWriteMany",), "mount_options": ("noatime",)},
        fs_type="ext4",
        volume_attributes={"size": "1"},
        node_stage_secret_ref=secret,
        node_publish_secret_ref=secret,
    )
    metadata = ObjectMeta(name="s", namespace="storage")
    scene.server.create(SECRETS, Secret(metadata=metadata, data={"k": b"v"}))
    async with scene.driver(capabilities=(STAGES,)) as driver:
        await (await an_agent(scene)).prepare(claiming())
        (stage,) = calls(driver, "NodeStageVolume")
        (publish,) = calls(driver, "NodePublishVolume")
    for call in (stage, publish):
        assert call["secrets"] == {"k": "v"}
        assert call["fs_type"] == "ext4"
        assert call["mount_flags"] == ["noatime"]
        assert call["access_mode"] == csi.VolumeCapabilityAccessModeMode.MULTI_NODE_MULTI_WRITER
    assert stage["context"] == {"size": "1"}
    assert publish["context"]["csi.storage.k8s.io/ephemeral"] == "false"
    assert publish["context"]["csi.storage.k8s.io/pod.uid"] == UID


async def test_a_volume_of_a_driver_without_an_object_is_attached_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_volumes, "ATTACHED_SECONDS", 0.1)
    describe(scene, None)
    async with scene.driver():
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady, match=r"unattached volumes=\[v\]"):
            await volumes.prepare(claiming())
        assert scene.staged.in_use() == (KEY.unique_name,)


@pytest.mark.parametrize("fault", [{"fail": "INTERNAL: no"}, {"lose_answer": True}])
async def test_a_stage_without_a_good_answer_is_asked_for_again_and_undone(
    scene: Scene, fault: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_volumes, "RETRY", retry(60))
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        # Long enough for a busy machine, and only when the driver has registered.
        monkeypatch.setattr("trio_kubelet.csi.driver.CALL_SECONDS", 2.0)
        driver.set_faults(NodeStageVolume=fault)
        words = 'MountVolume.MountDevice failed for volume "pv" : rpc error: code = '
        for _ in range(2):  # the second time it has to wait
            with pytest.raises(VolumesNotReady, match=words):
                await volumes.prepare(claiming())
        assert len(calls(driver, "NodeStageVolume", "begun")) == 1
        assert calls(driver, "NodePublishVolume", "begun") == []
        # The pod gives up: what nobody needs is undone without waiting.
        await volumes.tear_down(UID)
        await until_unused(scene)
        assert driver.staged() == []
        assert len(calls(driver, "NodeUnstageVolume")) == 1


async def test_a_driver_that_stages_nothing_though_it_says_so_keeps_no_volume_in_use(
    scene: Scene,
) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        lacks = {"fail": "UNIMPLEMENTED: unknown method"}
        driver.set_faults(NodeStageVolume=lacks, NodeUnstageVolume=lacks)
        words = 'MountDevice failed for volume "pv" : rpc error: code = Unimplemented'
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(claiming())
        await volumes.tear_down(UID)
        await until_unused(scene)


async def test_a_driver_that_wants_volumes_staged_though_it_does_not_say_so_is_told_of(
    scene: Scene,
) -> None:
    describe(scene)
    async with scene.driver() as driver:
        volumes = await an_agent(scene)
        driver.set_faults(NodePublishVolume={"fail": "FAILED_PRECONDITION: not staged"})
        with pytest.raises(VolumesNotReady, match="code = FailedPrecondition desc = not staged"):
            await volumes.prepare(claiming())
        await volumes.tear_down(UID)
        await until_unused(scene)
        assert order(driver) == ["Unpublish"]


async def test_pods_are_woken_when_their_volume_is_staged_after_all(scene: Scene) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        woken = trio.Event()
        scene.staged.on_ready.add(lambda _: woken.set())
        driver.set_faults(NodeStageVolume={"fail": "INTERNAL: no"})
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(claiming())
        driver.set_faults()
        with trio.fail_after(20):
            await woken.wait()
        await volumes.prepare(claiming())


async def test_a_volume_whose_last_pod_goes_while_it_is_staged_is_unstaged(scene: Scene) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        with trio.move_on_after(60) as sync:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(volumes.prepare, claiming())
                while not calls(driver, "NodeStageVolume", "begun"):
                    await trio.testing.wait_all_tasks_blocked(0.001)
                sync.cancel()
        await volumes.tear_down(UID)
        await until_unused(scene)
        assert driver.staged() == []
        assert order(driver)[-1] == "Unstage"


async def test_an_agent_that_starts_knows_who_uses_what_and_asks_for_nothing_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (csi_stages, csi_volume):
        monkeypatch.setattr(module, "is_mounted", lambda _: True)
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        await (await an_agent(scene)).prepare(claiming("a"))
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a"))
        await volumes.prepare(claiming("b"))
        assert order(driver) == ["Stage", "Publish", "Publish"]
        volumes = await an_agent(scene)
        monkeypatch.setattr(csi_stages, "is_mounted", lambda _: False)
        await volumes.tear_down("a")
        await volumes.tear_down("b")
        await until_unused(scene)
        assert order(driver)[3:] == ["Unpublish", "Unpublish", "Unstage"]


@pytest.mark.parametrize("is_mounted", [True, False])
async def test_a_stage_is_undone_by_the_next_agent_though_the_disk_takes_no_mark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_mounted: bool
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(staged_volumes, "RETRY", retry(60))
    monkeypatch.setattr(csi_stages, "is_mounted", lambda _: is_mounted)
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        driver.set_faults(NodeUnstageVolume={"fail": "INTERNAL: killed"})
        monkeypatch.setattr(doubt_marks, "write_whole", refuse)
        await volumes.tear_down(UID)
        with trio.fail_after(20):
            while not calls(driver, "NodeUnstageVolume", "begun"):
                await trio.testing.wait_all_tasks_blocked(0.01)
        driver.set_faults()
        await an_agent(scene)
        await until_unused(scene)
        assert driver.staged() == []


async def test_a_stage_that_no_pod_uses_is_undone_by_the_next_agent(scene: Scene) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        driver.set_faults(NodePublishVolume={"fail": "INTERNAL: killed"})
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(claiming())
        (scene.root / "pods" / UID / "volumes/kubernetes.io~csi/pv/vol_data.json").unlink()
        assert driver.staged() == [str(stage_place(scene.root, KEY).path)]
        await an_agent(scene)
        await until_unused(scene)
        assert driver.staged() == []


@pytest.mark.parametrize(
    ("device", "left"),
    [("", "globalmount"), ("", ""), ("pv", "")],
)
async def test_an_agent_removes_what_one_that_was_killed_left_without_a_record(
    scene: Scene, device: str, left: str
) -> None:
    place, marks = stage_place(scene.root, KEY, device), scene.root / "csi_calls/staged"
    (place.folder / left).mkdir(parents=True)
    (place.folder / ".vol_data.json.new").touch()
    marks.mkdir(parents=True)
    for name in (f"{NAME}~{KEY.digest}", f".{NAME}~{KEY.digest}.new"):
        (marks / name).touch()
    await an_agent(scene)
    assert not place.folder.exists()
    assert list(marks.iterdir()) == []


async def test_what_is_not_an_agents_own_stays_where_stages_are(scene: Scene) -> None:
    files = stage_place(scene.root, KEY).path
    files.mkdir(parents=True)
    (files / "data").touch()
    await an_agent(scene)
    assert (files / "data").exists()


async def test_a_stage_is_undone_though_its_record_was_being_written_at_the_end(
    scene: Scene,
) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        (stage_place(scene.root, KEY).folder / ".vol_data.json.new").touch()
        await volumes.tear_down(UID)
        await until_unused(scene)


async def test_a_volume_is_unstaged_when_its_driver_is_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_volumes, "RETRY", retry(60))
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        await volumes.tear_down(UID)
        await until_unused(scene)
        await volumes.prepare(claiming())
    with pytest.raises(VolumeBusy, match="not found in the list of registered CSI drivers"):
        await volumes.tear_down(UID)
    async with scene.driver(capabilities=(STAGES,)):
        await volumes.tear_down(UID)
        await until_unused(scene)
    assert driver.staged() == []


async def test_a_file_system_that_is_mounted_elsewhere_stays_staged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, looked = [scene.root / "somewhere"], threading.Event()

    def mounts_of_staged(_place: StagePlace) -> tuple[Path, ...]:
        looked.set()
        return tuple(others)

    monkeypatch.setattr(csi_stages, "mounts_of_staged", mounts_of_staged)
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        await volumes.tear_down(UID)
        assert await trio.to_thread.run_sync(looked.wait, 20)
        assert driver.staged() == [str(stage_place(scene.root, KEY).path)]
        others.clear()
        await until_unused(scene)
        assert driver.staged() == []


async def test_a_pod_waits_until_the_controller_has_attached_its_volume(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_volumes, "ATTACHED_SECONDS", 0.1)
    describe(scene, ATTACHED)
    name = KEY.unique_name
    scene.server.create(
        VOLUME_ATTACHMENTS,
        VolumeAttachment(
            metadata=ObjectMeta(name=attachment_name(KEY, "node")),
            status=VolumeAttachmentStatus(attached=True, attachment_metadata={"disk": "sdb"}),
        ),
    )
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)

        def node(*in_use: str) -> Node:
            attached = (AttachedVolume(name=name),)
            return Node(status=NodeStatus(volumes_in_use=in_use, volumes_attached=attached))

        scene.node = node()  # The controller does not know yet that it is in use.
        words = r"unmounted volumes=\[v\], unattached volumes=\[v\], failed to process volumes=\[\]"
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(claiming())
        assert scene.staged.in_use() == (name,)
        assert order(driver) == []
        scene.node = node(name)
        scene.staged.node_changed()
        monkeypatch.setattr(staged_volumes, "ATTACHED_SECONDS", 60)
        await volumes.prepare(claiming())
        (stage,) = calls(driver, "NodeStageVolume")
        (publish,) = calls(driver, "NodePublishVolume")
        assert stage["publish_context"] == publish["publish_context"] == {"disk": "sdb"}
        # Another agent does not know yet whether it was attached: it may have been.
        await an_agent(scene)
        assert scene.staged.in_use() == (name,)


async def test_a_pod_that_goes_while_it_waits_for_the_controller_leaves_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_volumes, "ATTACHED_SECONDS", 0.1)
    describe(scene, ATTACHED)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(claiming())
        await volumes.tear_down(UID)
        await until_unused(scene)
        assert order(driver) == []


async def test_an_attachment_that_is_not_there_or_goes_is_named(scene: Scene) -> None:
    describe(scene, ATTACHED)
    name = KEY.unique_name
    status = NodeStatus(volumes_in_use=(name,), volumes_attached=(AttachedVolume(name=name),))
    scene.node = Node(status=status)
    async with scene.driver(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        words = "volume h-1 has GET error for volume attachment csi-"
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(claiming())


@pytest.mark.parametrize("state", StageState)
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("is_attached", [False, True])
def test_the_next_step_is_one_that_the_table_allows(
    state: StageState, is_used: bool, is_needed: bool, is_attached: bool
) -> None:
    step = next_step(state, is_used=is_used, is_needed=is_needed, is_attached=is_attached)
    if step is None:
        return
    if state not in (StageState.STAGING, StageState.UNSTAGING):
        assert STAGE.allows(state, step)
    assert (step is StageEvent.UNSTAGE) <= (not is_used)
    assert (step is StageEvent.STAGE) <= (is_needed and is_attached)
