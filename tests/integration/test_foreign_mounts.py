"""Mounts that others make in volumes of pods, and what of theirs stays when the pod goes."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.volumes.persistent import claim, claiming_pod, persistent
from trio_kubelet.k8s import (
    Container,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ObjectMeta,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from trio_kubelet.k8s.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points, mounts_at_or_below
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.mount import MS_BIND, MS_PRIVATE, MS_REC, MS_SHARED, mount, unmount
from trio_kubelet.volumes.plugin import VolumeBusy
from trio_kubelet.volumes.volumes import Volumes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A shared mount, as the root folder of most machines is one."""
    folder = tmp_path / "machine"
    folder.mkdir()
    mount("tmpfs", folder, "tmpfs", options="size=4m")
    mount("", folder, flags=MS_SHARED)
    yield folder
    # Those of the machine are private, or to unmount one would be to unmount its copies.
    mount("", folder, flags=MS_PRIVATE | MS_REC)
    for each in mounts_at_or_below(folder.resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def folders(tmp_path: Path, shared: Path) -> PodFolders:
    """The agent's folders, on the machine's own mount."""
    (shared / "kubelet").mkdir()
    return PodFolders(shared / "kubelet")


@pytest.fixture
def disk(shared: Path) -> Path:
    """A folder of the machine that a volume is made of."""
    (shared / "disk/inner").mkdir(parents=True)
    return shared / "disk"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster() as cluster:
        yield cluster


@pytest.fixture
def volumes(folders: PodFolders, cluster: Cluster) -> Volumes:
    return local_volumes(folders, lambda pod: 1 << 20, data=cluster.references)


def mount_precious(folder: Path) -> None:
    """Mount a file system of the user's, with data."""
    mount("tmpfs", folder, "tmpfs", options="size=1m")
    (folder / "data").write_text("kept")


def mounts_of(folders: PodFolders) -> tuple[MountPoint, ...]:
    return mounts_at_or_below(folders.root.resolve(), mount_points())


def bind(cluster: Cluster, disk: Path) -> None:
    """Have a claim that is bound to the folder."""
    made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
    bound = persistent(local=str(disk), bound_to=made.metadata.uid)
    cluster.server.create(PERSISTENT_VOLUMES, bound)


async def test_what_is_mounted_in_the_folder_of_a_local_volume_stays_when_its_pod_goes(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk)
    mounted = (await volumes.prepare(claiming_pod()))["files"]
    mount_precious(disk / "inner")
    assert (Path(mounted.host_path) / "inner/data").read_text() == "kept"
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()
    assert (disk / "inner/data").read_text() == "kept"


async def test_what_is_mounted_on_the_folder_of_a_local_volume_is_waited_for(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk)
    mounted = (await volumes.prepare(claiming_pod()))["files"]
    mount_precious(disk)
    assert (Path(mounted.host_path) / "data").read_text() == "kept"
    for _ in range(2):
        with pytest.raises(VolumeBusy, match=f"mounted on {disk}, too: unmount it there"):
            await volumes.remove_pod("u1")
        assert (disk / "data").read_text() == "kept"
    unmount(disk)
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()


async def test_a_folder_that_somebody_bound_into_a_volume_keeps_what_is_mounted_there(
    disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    await volumes.prepare(with_volume(EmptyDirVolumeSource(medium="Memory"), uid="other"))
    other = folders.volume("other", "kubernetes.io/empty-dir", "v")
    (other / "data").write_text("kept")
    mount_precious(disk / "inner")
    mounted = (await volumes.prepare(with_volume(EmptyDirVolumeSource())))["v"]
    for source in (disk, other.parent):
        bound = Path(mounted.host_path) / source.name
        bound.mkdir()
        mount(str(source), bound, flags=MS_BIND | MS_REC)
    await volumes.remove_pod("u1")
    assert (disk / "inner/data").read_text() == "kept"
    assert (other / "data").read_text() == "kept"
    assert [each.path for each in mounts_of(folders)] == [other.resolve()]


async def test_what_a_pod_mounted_in_a_volume_goes_from_its_stage_too(
    folders: PodFolders, volumes: Volumes
) -> None:
    stage = folders.plugins / "kubernetes.io/csi/d/h/globalmount"
    stage.mkdir(parents=True)
    mount("tmpfs", stage, "tmpfs", options="size=1m")
    (stage / "inner").mkdir()
    target = folders.volume("u1", "kubernetes.io/local-volume", "v")
    target.mkdir(parents=True)
    mount(str(stage), target, flags=MS_BIND)
    mount("tmpfs", target / "inner", "tmpfs", options="size=1m")
    assert (stage / "inner").is_mount()
    await volumes.remove_pod("u1")
    assert [each.path for each in mounts_of(folders)] == [stage.resolve()]


def with_volume(source: EmptyDirVolumeSource, uid: str = "u1") -> Pod:
    container = Container(name="c", volume_mounts=(VolumeMount(name="v", mount_path="/v"),))
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="n", uid=uid),
        spec=PodSpec(containers=(container,), volumes=(Volume(name="v", empty_dir=source),)),
    )


async def test_what_is_mounted_in_the_folder_of_a_sub_path_stays_when_its_pod_goes(
    disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    volume = Volume(name="v", host_path=HostPathVolumeSource(path=str(disk.parent)))
    container = Container(name="c", volume_mounts=(VolumeMount(name="v", mount_path="/v"),))
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u1"),
        spec=PodSpec(containers=(container,), volumes=(volume,)),
    )
    mounted = (await volumes.prepare(pod))["v"]
    bound = await volumes.bind_sub_path(pod, mounted, "c", 0, "disk")
    mount_precious(disk / "inner")
    assert (Path(bound) / "inner/data").read_text() == "kept"
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()
    assert (disk / "inner/data").read_text() == "kept"
