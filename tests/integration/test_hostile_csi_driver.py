"""A CSI driver that puts odd things where a volume is to be, and what stays of others' things."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from lab.csi_driver import LabDriver
from state_machines.backoff import BackoffPolicy
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    EPHEMERAL,
    UID,
    Scene,
    a_pod,
    calls,
)
from trio_kubelet.k8s import PodSecurityContext
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points, mounts_at_or_below
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.volumes import back_offs
from trio_kubelet.volumes.mount import MS_BIND, MS_PRIVATE, MS_REC, MS_SHARED, mount, unmount
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

OWNED = evolve(EPHEMERAL, fs_group_policy="File")
OTHER = "uid-other"


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """A node whose mounts are shared, as with systemd."""
    with making_test_data():
        root = tmp_path_factory.mktemp("v")
        mount("tmpfs", root, "tmpfs", options="size=16m")
        mount("", root, flags=MS_SHARED)
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        yield Scene(root, nursery, privileged=True)
        nursery.cancel_scope.cancel()
    # Of shared mounts one would be unmounted with another.
    mount("", root, flags=MS_PRIVATE | MS_REC)
    for each in mounts_at_or_below(root.resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def precious(scene: Scene) -> Path:
    """A folder of the machine with a mount and data, of which nothing may change."""
    path = scene.root / "precious"
    (path / "inner").mkdir(parents=True)
    (path / "data").write_text("kept")
    mount("tmpfs", path / "inner", "tmpfs", options="size=1m")
    (path / "inner/data").write_text("kept")
    return path


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    monkeypatch.setattr(back_offs, "RETRY", policy)


def is_kept(precious: Path) -> bool:
    """True if nothing was taken away, and nothing given to another group."""
    data = (precious / "data", precious / "inner/data")
    return all(each.read_text() == "kept" and each.stat().st_gid == 0 for each in data)


def publishing(put: Callable[[Path], None], *, undoes: bool = True) -> type[LabDriver]:
    """A driver that puts something odd at the target, and says that it is done.

    Without `undoes` it takes nothing away, and says that it has.
    """

    class OddDriver(LabDriver):
        def _put(self, source: str, target: Path) -> None:
            put(target)

        async def node_unpublish_volume(
            self, request: csi.NodeUnpublishVolumeRequest
        ) -> csi.NodeUnpublishVolumeResponse:
            if undoes:
                return await super().node_unpublish_volume(request)
            await self._carry_out(
                "NodeUnpublishVolume",
                {"volume": request.volume_id, "target": request.target_path},
                lambda: None,
            )
            return csi.NodeUnpublishVolumeResponse()

    return OddDriver


def mounts_of(scene: Scene, uid: str = UID) -> tuple[MountPoint, ...]:
    return mounts_at_or_below((scene.root / "pods" / uid).resolve(), mount_points())


async def is_removed(scene: Scene, volumes: Volumes) -> bool:
    """Remove the pod as its task does, which tries again; True if nothing is left."""
    for _ in range(2):
        try:
            await volumes.remove_pod(UID)
        except (VolumeBusy, OSError):
            continue
        break
    return not (scene.root / "pods" / UID).exists() and not mounts_of(scene)


def of_group(pod: Any) -> Any:
    return evolve(pod, spec=evolve(pod.spec, security_context=PodSecurityContext(fs_group=4321)))


async def test_a_symlink_in_the_place_of_a_volume_leads_neither_pod_nor_agent_anywhere(
    scene: Scene, precious: Path
) -> None:
    scene.describe(OWNED)
    kind = publishing(lambda target: target.symlink_to(precious), undoes=False)
    async with scene.driver(kind, mounts=True) as driver:
        volumes = scene.agent()
        words = r"the driver has put something there that is no folder: '.*/v/mount'"
        with pytest.raises(VolumesNotReady, match=words):
            await volumes.prepare(of_group(a_pod()))
        assert await is_removed(scene, volumes)
        assert len(calls(driver, "NodeUnpublishVolume")) == 1
    assert is_kept(precious)


@pytest.mark.parametrize("undoes", [True, False])
async def test_a_file_in_the_place_of_a_volume_is_told_of(scene: Scene, undoes: bool) -> None:
    scene.describe(EPHEMERAL)
    kind = publishing(lambda target: target.touch(), undoes=undoes)
    async with scene.driver(kind, mounts=True):
        volumes = scene.agent()
        with pytest.raises(VolumesNotReady, match="something there that is no folder"):
            await volumes.prepare(a_pod())
        assert await is_removed(scene, volumes)


def mount_in(target: Path) -> None:
    target.mkdir(exist_ok=True)
    mount("tmpfs", target, "tmpfs", options="size=1m")


def mount_many(precious: Path, target: Path) -> None:
    """Mount file systems on each other and in each other, and those of the machine among them."""
    for _ in range(3):
        mount_in(target)
    for place in (target / "a", target / "a/b", target / "a/b/c\n d"):
        mount_in(place)
    for flags in (0, MS_REC):
        place = target / f"a/bound-{flags}"
        place.mkdir()
        mount(str(precious), place, flags=MS_BIND | flags)


def write_files(target: Path) -> None:
    target.mkdir()
    (target / "data").write_text("kept")


ODD_MOUNTS: dict[str, Callable[[Path], None]] = {
    "over_the_folder_of_the_pod": lambda target: mount_in(target.parents[3]),
    "over_the_folder_of_the_volumes": lambda target: mount_in(target.parents[2]),
    "over_the_folder_of_the_volume": lambda target: mount_in(target.parent),
    "none": lambda target: None,
}


@pytest.mark.parametrize("undoes", [True, False])
@pytest.mark.parametrize("odd", ODD_MOUNTS)
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_volume_that_is_mounted_elsewhere_in_its_pod_is_given_back_once(
    scene: Scene, odd: str, undoes: bool, restarts: bool
) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver(publishing(ODD_MOUNTS[odd], undoes=undoes), mounts=True) as driver:
        volumes = scene.agent()
        await volumes.prepare(a_pod())
        if restarts:
            volumes = scene.agent()
        assert await is_removed(scene, volumes)
        assert len(calls(driver, "NodeUnpublishVolume")) == 1
        assert scene.marks() == []


async def test_mounts_in_and_on_each_other_go_and_those_of_the_machine_stay(
    scene: Scene, precious: Path
) -> None:
    scene.describe(OWNED)
    kind = publishing(lambda target: mount_many(precious, target), undoes=False)
    async with scene.driver(kind, mounts=True):
        volumes = scene.agent()
        await volumes.prepare(of_group(a_pod()))
        assert len(mounts_of(scene)) == 9
        assert await is_removed(scene, volumes)
    assert is_kept(precious)


async def test_volumes_of_another_pod_that_a_driver_has_bound_stay(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver(mounts=True):
        await scene.agent().prepare(evolve(a_pod(), metadata=evolve(a_pod().metadata, uid=OTHER)))
    other = scene.root / "pods" / OTHER

    def bind_other(target: Path) -> None:
        target.mkdir()
        mount(str(other), target, flags=MS_BIND | MS_REC)

    async with scene.driver(publishing(bind_other, undoes=False), mounts=True):
        volumes = scene.agent()
        await volumes.prepare(a_pod())
        assert await is_removed(scene, volumes)
        assert [each.path.name for each in mounts_of(scene, OTHER)] == ["mount"]


async def test_files_where_nothing_was_mounted_stay_and_are_told_of(scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    async with scene.driver(publishing(write_files, undoes=False), mounts=True) as driver:
        volumes = scene.agent()
        await volumes.prepare(a_pod())
        for _ in range(3):
            with pytest.raises(OSError, match=r"there are files; move them away: '.*/v/mount'"):
                await volumes.remove_pod(UID)
        assert (Path(scene.target) / "data").read_text() == "kept"
        assert len(calls(driver, "NodeUnpublishVolume")) == 1
        (Path(scene.target) / "data").unlink()
        assert await is_removed(scene, volumes)


async def test_a_symlink_in_the_place_of_the_volumes_folder_is_not_followed(
    scene: Scene, precious: Path
) -> None:
    scene.describe(EPHEMERAL)
    (precious / "mount").mkdir()
    async with scene.driver(mounts=True):
        volumes = scene.agent()
        await volumes.prepare(a_pod())
        record = (scene.folder / "vol_data.json").read_text()
        scene.folder.rename(scene.folder.with_name("moved"))
        scene.folder.symlink_to(precious)
        (precious / "vol_data.json").write_text(record)
        with pytest.raises(VolumeBusy, match="/v is a symbolic link"):
            await scene.agent().remove_pod(UID)
    assert (precious / "vol_data.json").read_text() == record
    assert (precious / "mount").is_dir()
    assert is_kept(precious)
