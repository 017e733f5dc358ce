"""Volumes of CSI drivers as devices, beside those that are folders."""

import errno
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from lab.csi_driver import NAME, STAGES, LabDriver
from state_machines.backoff import BackoffPolicy
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    UID,
    Scene,
    an_agent,
    calls,
    claiming,
    describe,
    order,
)
from trio_kubelet.k8s import PERSISTENT_VOLUMES
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import devices, staged_volumes
from trio_kubelet.volumes.csi_records import VolumeKey, stage_place
from trio_kubelet.volumes.plugin import VolumesNotReady


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture
def no_bind_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are not bound, which needs root."""

    def unmount(path: Path) -> None:
        raise OSError(errno.EINVAL, "not mounted", str(path))

    monkeypatch.setattr(devices, "mount", lambda *_, **__: None)
    monkeypatch.setattr(devices, "unmount", unmount)


@pytest.mark.usefixtures("no_bind_mounts")
async def test_a_device_has_the_paths_of_the_go_kubelet_and_leaves_none(scene: Scene) -> None:
    describe(scene, volume={"volume_mode": "Block"})
    plugin = scene.root / "plugins/kubernetes.io/csi/volumeDevices"
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        for uid in ("a", "b"):
            mounted = (await volumes.prepare(claiming(uid, as_device=True)))["v"]
            link = scene.root / "pods" / uid / "volumeDevices/kubernetes.io~csi/pv"
            assert (mounted.host_path, mounted.device) == ("", str(link))
            assert link.readlink() == plugin / "publish/pv" / uid
            assert (plugin / "pv/dev" / uid).exists()
        (stage,) = calls(driver, "NodeStageVolume")
        assert stage["target"] == str(plugin / "staging/pv")
        record = json.loads((plugin / "pv/data/vol_data.json").read_text())
        assert record["specVolID"] == "pv"
        assert record["volumeHandle"] == "h-1"
        # Another agent finds the users by their links.
        volumes = await an_agent(scene)
        await volumes.tear_down("a")
        assert len(calls(driver, "NodeUnpublishVolume")) == 1
        await volumes.tear_down("b")
        with trio.fail_after(20):
            while any(path.is_file() for path in plugin.rglob("*")):
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert order(driver)[-3:] == ["Unpublish", "Unpublish", "Unstage"]


@pytest.mark.usefixtures("no_bind_mounts")
async def test_a_device_that_was_not_published_for_certain_is_asked_for_again_and_undone(
    scene: Scene,
) -> None:
    describe(scene, volume={"volume_mode": "Block"})
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        driver.set_faults(NodePublishVolume={"fail": "INTERNAL: no"})
        words = 'MapVolume.MapPodDevice failed for volume "pv" : rpc error: code = Internal'
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(claiming(as_device=True))
        await (await an_agent(scene)).tear_down(UID)
        assert len(calls(driver, "NodeUnpublishVolume")) == 1
        assert not (scene.root / "pods" / UID / "volumeDevices").exists()


@pytest.mark.usefixtures("no_bind_mounts")
async def test_events_tell_once_where_a_device_was_mapped(scene: Scene) -> None:
    describe(scene, volume={"volume_mode": "Block"})
    async with scene.driver(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        for _ in range(2):
            await volumes.prepare(claiming(as_device=True))
    users = scene.root / "plugins/kubernetes.io/csi/volumeDevices/pv/dev"
    links = scene.root / "pods" / UID / "volumeDevices/kubernetes.io~csi"
    words = 'MapVolume.MapPodDevice succeeded for volume "pv"'
    assert [(each.reason, each.message) for each in scene.events] == [
        ("SuccessfulMountVolume", f'{words} globalMapPath "{users}"'),
        ("SuccessfulMountVolume", f'{words} volumeMapPath "{links}"'),
    ]


@pytest.mark.usefixtures("no_bind_mounts")
async def test_a_volume_that_is_a_folder_for_one_pod_and_a_device_for_another_is_staged_for_each(
    scene: Scene,
) -> None:
    describe(scene)
    block = {"volume_mode": "Block"}
    describe(scene, None, block, claim_name="raw", volume_name="pv-raw")
    folder = stage_place(scene.root, VolumeKey(NAME, "h-1"))
    device = stage_place(scene.root, VolumeKey(NAME, "h-1"), "pv-raw")
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a"))
        await volumes.prepare(claiming("b", "raw", as_device=True))
        staged = {each["target"] for each in calls(driver, "NodeStageVolume")}
        assert staged == {str(folder.path), str(device.path)}
        published = [each["staged"] for each in calls(driver, "NodePublishVolume")]
        assert published == [str(folder.path), str(device.path)]
        # Another agent knows which pod uses which of them.
        volumes = await an_agent(scene)
        await volumes.tear_down("a")
        await until_unstaged(driver, folder.path)
        assert driver.staged() == [str(device.path)]
        await volumes.tear_down("b")
        await until_unstaged(driver, device.path)
        assert driver.staged() == []
        assert sorted(order(driver)[4:]) == ["Unpublish", "Unpublish", "Unstage", "Unstage"]


@pytest.mark.usefixtures("no_bind_mounts")
@pytest.mark.parametrize("has_file_in_the_way", [False, True])
async def test_a_device_made_anew_under_the_same_name_waits_until_the_old_one_is_unstaged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, has_file_in_the_way: bool
) -> None:
    """The driver stages a device by the name of its PersistentVolume alone."""
    quick = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    monkeypatch.setattr(staged_volumes, "RETRY", quick)
    describe(scene, volume={"volume_mode": "Block"})
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a", as_device=True))
        make_anew(scene, "h-2")
        words = "MapVolume.SetUpDevice failed .* is in use for the volume 'h-1'"
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(claiming("b", as_device=True))
        if has_file_in_the_way:  # The folder of the old one cannot be removed.
            (stage_place(scene.root, VolumeKey(NAME, "h-1"), "pv").folder.parent / "x").touch()
        await volumes.tear_down("a")
        with trio.fail_after(20):
            while len(calls(driver, "NodePublishVolume")) < 2:
                with suppress(VolumesNotReady):
                    await volumes.prepare(claiming("b", as_device=True))
                await trio.testing.wait_all_tasks_blocked(0.01)
            await trio.testing.wait_all_tasks_blocked(0.1)  # The old one may be tried again.
        done = [(line["method"], line["volume"]) for line in driver.log.read() if is_done(line)]
    first, again = done.index(("NodeUnstageVolume", "h-1")), done.index(("NodeStageVolume", "h-2"))
    assert done[:first] == [
        ("NodeStageVolume", "h-1"),
        ("NodePublishVolume", "h-1"),
        ("NodeUnpublishVolume", "h-1"),
    ]
    assert set(done[first:again]) == {("NodeUnstageVolume", "h-1")}
    assert done[again:] == [("NodeStageVolume", "h-2"), ("NodePublishVolume", "h-2")]


def is_done(line: dict[str, Any]) -> bool:
    return line.get("step") == "done"


def make_anew(scene: Scene, handle: str) -> None:
    """Have another volume of the driver under the name of the one that is there."""
    old = scene.server.get(PERSISTENT_VOLUMES, "pv")
    assert old.spec.csi is not None
    spec = evolve(old.spec, csi=evolve(old.spec.csi, volume_handle=handle))
    scene.server.update(PERSISTENT_VOLUMES, evolve(old, spec=spec))


async def until_unstaged(driver: LabDriver, stage: Path) -> None:
    with trio.fail_after(20):
        while str(stage) in driver.staged():
            await trio.testing.wait_all_tasks_blocked(0.01)
