# ruff: noqa: ASYNC240 - the tests look at the disk themselves
"""Persistent volumes of the kind local: real mounts, and data that nothing removes."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.integration.local_disk import loop_device, put_loop_device_on
from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.volumes.persistent import claim, claiming_pod, persistent
from trio_kubelet.k8s import PodSecurityContext
from trio_kubelet.k8s.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from trio_kubelet.kernel.loop_devices import loop_devices_on, release_loop_device
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points, mounts_at_or_below
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.mount import MS_BIND, bind_with_options, mount, unmount
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster() as cluster:
        yield cluster


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder with data that must survive."""
    path = tmp_path / "disk"
    (path / "precious").mkdir(parents=True)
    (path / "precious/data").write_text("kept")
    return path


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PodFolders]:
    (tmp_path / "kubelet").mkdir()
    yield PodFolders(tmp_path / "kubelet")
    for each in mounts_at_or_below((tmp_path / "kubelet").resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def volumes(folders: PodFolders, cluster: Cluster) -> Volumes:
    return open_volumes(folders, cluster)


def open_volumes(folders: PodFolders, cluster: Cluster) -> Volumes:
    return local_volumes(folders, lambda pod: 1 << 20, data=cluster.references)


def bind(cluster: Cluster, disk: Path, *mount_options: str) -> None:
    made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
    uid = made.metadata.uid
    found = persistent(local=str(disk), bound_to=uid, mount_options=mount_options)
    cluster.server.create(PERSISTENT_VOLUMES, found)


def mounts_of(folders: PodFolders) -> tuple[MountPoint, ...]:
    return mounts_at_or_below(folders.root.resolve(), mount_points())


async def test_a_local_volume_is_bound_and_its_data_stays(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk)
    mounted = (await volumes.prepare(claiming_pod()))["files"]
    place = folders.root / "pods/u1/volumes/kubernetes.io~local-volume/pv-data"
    assert mounted.host_path == str(place)
    assert (place / "precious/data").read_text() == "kept"
    await volumes.prepare(claiming_pod())
    assert len(mounts_of(folders)) == 1
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()
    assert await volumes.pods_on_disk() == set()
    assert (disk / "precious/data").read_text() == "kept"


async def test_options_and_read_only_hold_for_the_mount(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk, "noexec", "nosuid")
    mounted = (await volumes.prepare(claiming_pod(read_only=True)))["files"]
    (made,) = mounts_of(folders)
    assert {"ro", "noexec", "nosuid"} <= set(made.options)
    assert mounted.read_only


async def test_a_mount_that_a_killed_agent_left_without_its_options_gets_them(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk, "noexec")
    place = folders.root / "pods/u1/volumes/kubernetes.io~local-volume/pv-data"
    place.mkdir(parents=True)
    mount(str(disk), place, flags=MS_BIND)
    await volumes.prepare(claiming_pod())
    (made,) = mounts_of(folders)
    assert "noexec" in made.options


async def test_an_option_that_no_bind_mount_has_is_an_error(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk, "discard")
    with pytest.raises(VolumesNotReady, match='"discard" cannot be given to a bind mount'):
        await volumes.prepare(claiming_pod())
    assert mounts_of(folders) == ()


async def test_a_path_that_is_not_there_is_told_as_by_the_go_kubelet(
    cluster: Cluster, tmp_path: Path, volumes: Volumes
) -> None:
    bind(cluster, tmp_path / "gone")
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(claiming_pod())
    assert str(caught.value) == (
        'MountVolume.NewMounter initialization failed for volume "pv-data" : '
        f'path "{tmp_path / "gone"}" does not exist'
    )


async def test_the_first_pod_gives_the_files_to_its_group(
    cluster: Cluster, disk: Path, volumes: Volumes
) -> None:
    bind(cluster, disk)
    for uid, group in (("u1", 4321), ("u2", 1234)):
        pod = claiming_pod(uid)
        context = PodSecurityContext(fs_group=group)
        await volumes.prepare(evolve(pod, spec=evolve(pod.spec, security_context=context)))
        assert (disk / "precious/data").stat().st_gid == 4321


async def test_of_pods_that_come_together_one_gives_the_files_to_its_group(
    cluster: Cluster, disk: Path, volumes: Volumes
) -> None:
    bind(cluster, disk)
    for number in range(200):
        (disk / f"precious/{number}").touch()
    async with trio.open_nursery() as nursery:
        for uid, group in (("u1", 4321), ("u2", 1234)):
            pod = claiming_pod(uid)
            context = PodSecurityContext(fs_group=group)
            spec = evolve(pod.spec, security_context=context)
            nursery.start_soon(volumes.prepare, evolve(pod, spec=spec))
    groups = {each.stat().st_gid for each in disk.rglob("*")}
    assert len(groups) == 1


async def test_a_mount_in_use_keeps_the_data(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    bind(cluster, disk)
    place = Path((await volumes.prepare(claiming_pod()))["files"].host_path)
    with (place / "precious/data").open(), pytest.raises(VolumeBusy):
        await open_volumes(folders, cluster).remove_pod("u1")
    assert (disk / "precious/data").read_text() == "kept"
    await volumes.remove_pod("u1")
    assert (disk / "precious/data").read_text() == "kept"


CHURN = """
import os, signal, sys, time
from pathlib import Path
import trio
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.mount import bind_with_options
from trio_kubelet.volumes.folders import make_folders
folders, disk = PodFolders(Path(sys.argv[1])), Path(sys.argv[2])
place = folders.volume("u1", "kubernetes.io/local-volume", "pv-data")
volumes = local_volumes(folders, lambda pod: 1 << 20)

async def agent():
    while True:
        make_folders(place)
        bind_with_options(disk, place, ("noexec",), read_only=False)
        await volumes.remove_pod("u1")

for moment in range(40):
    pid = os.fork()
    if not pid:
        trio.run(agent)
    time.sleep(0.01 + moment * 0.0007)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


async def test_an_agent_killed_while_it_mounts_and_removes_leaves_the_data(
    disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    arguments = [sys.executable, "-c", CHURN, str(folders.root), str(disk)]
    await trio.run_process(arguments)
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()
    assert (disk / "precious/data").read_text() == "kept"


async def test_a_device_is_mapped_and_let_go(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    with loop_device(disk.parent / "image") as device:
        made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
        found = persistent(local=device, mode="Block", bound_to=made.metadata.uid)
        cluster.server.create(PERSISTENT_VOLUMES, found)
        pods = [claiming_pod(uid, as_device=True) for uid in ("u1", "u2")]
        link = folders.root / "pods/u1/volumeDevices/kubernetes.io~local-volume/pv-data"
        users = folders.root / "plugins/kubernetes.io~local-volume/volumeDevices/pv-data"
        for _ in range(2):
            for pod in pods:
                mounted = (await volumes.prepare(pod))["files"]
        assert mounted.host_path == ""
        assert str(link.readlink()) == device
        assert {each.name for each in users.iterdir()} == {"u1", "u2"}
        assert len(mounts_of(folders)) == 2
        await open_volumes(folders, cluster).remove_pod("u1")
        assert [each.name for each in users.iterdir()] == ["u2"]
        await open_volumes(folders, cluster).remove_pod("u2")
        assert not users.exists()
        assert mounts_of(folders) == ()
        assert Path(device).is_block_device()


async def test_a_device_is_let_go_that_a_go_kubelet_has_put_a_loop_device_on(
    cluster: Cluster, disk: Path, folders: PodFolders, volumes: Volumes
) -> None:
    with loop_device(disk.parent / "image") as device:
        made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
        found = persistent(local=device, mode="Block", bound_to=made.metadata.uid)
        cluster.server.create(PERSISTENT_VOLUMES, found)
        await volumes.prepare(claiming_pod("u1", as_device=True))
        (bound,) = (each.path for each in mounts_of(folders))
        put_loop_device_on(bound)
        try:
            assert len(loop_devices_on(bound)) == 1
            await open_volumes(folders, cluster).remove_pod("u1")
            assert mounts_of(folders) == ()
            assert loop_devices_on(bound) == ()
        finally:
            for each in loop_devices_on(bound):
                release_loop_device(each)
        assert loop_devices_on(disk.parent / "image") == (Path(device),)


async def test_a_folder_is_no_device(cluster: Cluster, disk: Path, volumes: Volumes) -> None:
    made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
    found = persistent(local=str(disk), mode="Block", bound_to=made.metadata.uid)
    cluster.server.create(PERSISTENT_VOLUMES, found)
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(claiming_pod(as_device=True))
    words = f'MapVolume.SetUpDevice failed for volume "pv-data" : path "{disk}" is no block device'
    assert caught.value.failures == [("FailedMapVolume", words)]


def test_binding_twice_makes_one_mount(disk: Path, folders: PodFolders) -> None:
    place = folders.root / "place"
    place.mkdir(parents=True)
    for _ in range(2):
        bind_with_options(disk, place, (), read_only=False)
    assert len(mounts_of(folders)) == 1
