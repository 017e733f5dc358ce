"""Volumes for one pod alone (ReadWriteOncePod), over restarts of the agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from attrs import evolve

from lab.csi_driver import NAME, STAGES
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    NOT_ATTACHED,
    Scene,
    an_agent,
    claiming,
    describe,
)
from trio_kubelet.k8s import CSIVolumeSource, Volume
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import devices
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.persistent_users import pods_that_have
from trio_kubelet.volumes.plugin import VolumesNotReady

FOR_ONE_POD = {"access_modes": ("ReadWriteOncePod",)}
IN_USE = "uses the ReadWriteOncePod access mode and is already in use by another pod"


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture
def no_bind_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "mount", lambda *_, **__: None)
    monkeypatch.setattr(devices, "unmount", lambda *_, **__: None)


@pytest.mark.usefixtures("no_bind_mounts")
@pytest.mark.parametrize("as_device", [False, True])
async def test_a_pod_that_comes_first_after_a_restart_waits_for_the_one_that_has_the_volume(
    scene: Scene, as_device: bool
) -> None:
    mode = {"volume_mode": "Block" if as_device else "Filesystem"}
    describe(scene, volume={**FOR_ONE_POD, **mode})
    async with scene.driver(capabilities=(STAGES,)):
        await (await an_agent(scene)).prepare(claiming("a", as_device=as_device))
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady, match=IN_USE):
            await volumes.prepare(claiming("b", as_device=as_device))
        await volumes.prepare(claiming("a", as_device=as_device))
        await volumes.tear_down("a")
        await volumes.prepare(claiming("b", as_device=as_device))
        with pytest.raises(VolumesNotReady, match=IN_USE):
            await volumes.prepare(claiming("a", as_device=as_device))


async def test_a_record_that_cannot_be_read_keeps_other_pods_away(scene: Scene) -> None:
    describe(scene, volume=FOR_ONE_POD)
    async with scene.driver(capabilities=(STAGES,)):
        await (await an_agent(scene)).prepare(claiming("a"))
        folder = scene.root / "pods/a/volumes/kubernetes.io~csi/pv"
        (folder / "vol_data.json").write_text("")
        volumes = await an_agent(scene)
        with pytest.raises(VolumesNotReady, match=IN_USE):
            await volumes.prepare(claiming("b"))


async def test_a_pods_own_volume_of_the_same_name_keeps_nobody_away(scene: Scene) -> None:
    both = evolve(NOT_ATTACHED, volume_lifecycle_modes=("Persistent", "Ephemeral"))
    describe(scene, both, volume=FOR_ONE_POD)
    pod = claiming("a")
    (container,) = pod.spec.containers
    mounts = tuple(evolve(each, name="pv") for each in container.volume_mounts)
    spec = evolve(
        pod.spec,
        containers=(evolve(container, volume_mounts=mounts),),
        volumes=(Volume(name="pv", csi=CSIVolumeSource(driver=NAME)),),
    )
    async with scene.driver(capabilities=(STAGES,)):
        await (await an_agent(scene)).prepare(evolve(pod, spec=spec))
        await (await an_agent(scene)).prepare(claiming("b"))


def test_a_folder_or_a_device_of_a_local_volume_tells_of_its_pod(tmp_path: Path) -> None:
    folders, plugin = PodFolders(tmp_path), "kubernetes.io/local-volume"
    folders.volume("a", plugin, "pv").mkdir(parents=True)
    folders.device("b", plugin, "pv").parent.mkdir(parents=True)
    folders.device("b", plugin, "pv").symlink_to("/dev/null")
    folders.volume("c", "kubernetes.io/nfs", "pv").mkdir(parents=True)
    assert pods_that_have(folders, "pv") == {"a", "b"}
