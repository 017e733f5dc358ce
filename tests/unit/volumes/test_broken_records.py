"""Records of CSI volumes in pods' folders that cannot be read: half written, or damaged."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from lab.csi_driver import NAME, STAGES
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    EPHEMERAL,
    UID,
    Scene,
    an_agent,
    calls,
    claiming,
    describe,
    order,
)
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import csi_places, csi_stages, csi_volume
from trio_kubelet.volumes.csi_records import RECORD, VolumeKey, stage_place
from trio_kubelet.volumes.plugin import VolumeBusy

BROKEN = ["", "{", "[]", '{"driverName": "../x", "volumeHandle": "v"}']
KEY = VolumeKey(NAME, "h-1")


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture
def all_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's folders count as mounts."""
    for module in (csi_stages, csi_volume):
        monkeypatch.setattr(module, "is_mounted", lambda _: True)


def folder(scene: Scene, uid: str) -> Path:
    return scene.root / "pods" / uid / "volumes/kubernetes.io~csi/pv"


def break_record(scene: Scene, uid: str, text: str = "{") -> Path:
    record = folder(scene, uid) / RECORD
    record.write_text(text)
    return record


@pytest.mark.parametrize("text", BROKEN)
async def test_a_volume_of_which_nothing_is_mounted_is_no_hindrance(
    scene: Scene, text: str
) -> None:
    (scene.folder / "mount").mkdir(parents=True)
    (scene.folder / RECORD).write_text(text)
    await scene.agent().tear_down(UID)
    assert not scene.folder.exists()


async def test_files_where_nothing_is_mounted_stay(scene: Scene) -> None:
    (scene.folder / "mount").mkdir(parents=True)
    (scene.folder / "mount/data").touch()
    (scene.folder / RECORD).touch()
    with pytest.raises(OSError, match="there are files"):
        await scene.agent().tear_down(UID)
    assert (scene.folder / "mount/data").exists()


@pytest.mark.parametrize("text", BROKEN)
async def test_a_mount_of_nobody_knows_which_driver_is_named_and_stays_until_it_is_unmounted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (scene.folder / "mount").mkdir(parents=True)
    (scene.folder / RECORD).write_text(text)
    volumes = scene.agent()
    with monkeypatch.context() as mounted:
        mounted.setattr(csi_places, "is_mounted", lambda _: True)
        with pytest.raises(VolumeBusy, match=r"so unmount it: .*vol_data\.json"):
            await volumes.tear_down(UID)
        assert (scene.folder / RECORD).exists()
    await volumes.tear_down(UID)
    assert not scene.folder.exists()


async def test_an_agent_that_has_published_a_volume_needs_no_record(scene: Scene) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a"))
        break_record(scene, "a")
        await volumes.tear_down("a")
        assert driver.published() == []
        assert not folder(scene, "a").exists()


async def test_a_mount_of_a_stage_tells_which_volume_it_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        await (await an_agent(scene)).prepare(claiming("a"))
        break_record(scene, "a")
        mount = folder(scene, "a") / "mount"
        monkeypatch.setattr(csi_places, "mounts_of_staged", lambda _: (mount,))
        await (await an_agent(scene)).tear_down("a")
        (call,) = calls(driver, "NodeUnpublishVolume")
        assert (call["volume"], call["target"]) == ("h-1", str(mount))
        assert not folder(scene, "a").exists()


@pytest.mark.usefixtures("all_mounted")
async def test_a_pod_that_runs_on_tells_its_volume_and_nothing_is_mounted_again(
    scene: Scene,
) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        await (await an_agent(scene)).prepare(claiming("a"))
        record = break_record(scene, "a")
        await (await an_agent(scene)).prepare(claiming("a"))
        assert order(driver) == ["Stage", "Publish"]
        assert json.loads(record.read_text())["volumeHandle"] == "h-1"
        await (await an_agent(scene)).tear_down("a")
        assert driver.published() == []


@pytest.mark.usefixtures("all_mounted")
async def test_a_pods_own_volume_is_told_by_the_pod_too(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver() as driver:
        await (await an_agent(scene)).prepare(scene.pod)
        (scene.folder / RECORD).write_text("")
        await (await an_agent(scene)).prepare(scene.pod)
        assert order(driver) == ["Publish"]
        await (await an_agent(scene)).tear_down(UID)
        assert driver.published() == []


@pytest.mark.usefixtures("all_mounted")
@pytest.mark.parametrize("tells", [True, False])
async def test_nothing_is_unstaged_that_a_pod_may_use_until_it_tells_or_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    describe(scene)
    place = stage_place(scene.root, KEY)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        for uid in ("a", "b"):
            await volumes.prepare(claiming(uid))
        break_record(scene, "a")
        volumes = await an_agent(scene)
        await volumes.tear_down("b")
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert driver.staged() == [str(place.path)]
        monkeypatch.setattr(csi_stages, "is_mounted", lambda _: False)
        if tells:
            await volumes.prepare(claiming("a"))
        else:
            mounts = (folder(scene, "a") / "mount",)
            monkeypatch.setattr(csi_places, "mounts_of_staged", lambda _: mounts)
        await volumes.tear_down("a")
        with trio.fail_after(20):
            while place.folder.exists():
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert driver.staged() == []
