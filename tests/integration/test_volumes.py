# ruff: noqa: ASYNC240 - the tests look at the disk themselves
"""Real mounts: file systems in memory, bind mounts of subPaths, what is left when they are busy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_kubelet.k8s import (
    Container,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    Volume,
    VolumeMount,
)
from trio_kubelet.kernel.mountinfo import MountPoint, mount_of, mount_points, mounts_at_or_below
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.mount import MS_BIND, MS_PRIVATE, make_shared, mount, unmount
from trio_kubelet.volumes.plugin import VolumeBusy, VolumeError
from trio_kubelet.volumes.volumes import Volumes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

MI = 1 << 20
MEMORY = Volume(
    name="mem", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit=Quantity("2Mi"))
)
DISK = Volume(name="disk", empty_dir=EmptyDirVolumeSource())


def pod_with(*volumes: Volume) -> Pod:
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in volumes)
    return Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u1"),
        spec=PodSpec(containers=(Container(name="c", volume_mounts=mounts),), volumes=volumes),
    )


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PodFolders]:
    yield PodFolders(tmp_path)
    for each in mounts_at_or_below(tmp_path.resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def volumes(folders: PodFolders) -> Volumes:
    return local_volumes(folders, lambda pod: 64 * MI)


def mounts_of(folders: PodFolders) -> tuple[MountPoint, ...]:
    return mounts_at_or_below(folders.root.resolve(), mount_points())


async def test_memory_is_mounted_once_with_its_size_and_survives_a_restart(
    folders: PodFolders, volumes: Volumes
) -> None:
    pod = pod_with(MEMORY)
    path = Path((await volumes.prepare(pod))["mem"].host_path)
    (path / "written").write_text("x")
    restarted = local_volumes(folders, lambda pod: 64 * MI)
    await restarted.prepare(pod)
    (mounted,) = mounts_of(folders)
    assert mounted.fs_type == "tmpfs"
    assert "size=2048k" in mounted.super_options
    assert (path / "written").exists()


async def test_memory_that_was_mounted_but_not_marked_is_kept(
    folders: PodFolders, volumes: Volumes
) -> None:
    pod = pod_with(MEMORY)
    path = Path((await volumes.prepare(pod))["mem"].host_path)
    (folders.plugin("u1", "kubernetes.io/empty-dir", "mem") / "ready").unlink()
    (path / "written").write_text("x")
    await volumes.prepare(pod)
    assert len(mounts_of(folders)) == 1
    assert (path / "written").exists()


async def test_memory_that_was_unmounted_behind_our_back_is_mounted_again(
    folders: PodFolders, volumes: Volumes
) -> None:
    pod = pod_with(MEMORY)
    unmount(Path((await volumes.prepare(pod))["mem"].host_path))
    await volumes.prepare(pod)
    assert len(mounts_of(folders)) == 1


async def test_everything_is_unmounted_and_removed(folders: PodFolders, volumes: Volumes) -> None:
    pod = pod_with(MEMORY, DISK)
    mounted = await volumes.prepare(pod)
    (Path(mounted["mem"].host_path) / "inner").mkdir()
    mount("tmpfs", Path(mounted["mem"].host_path) / "inner", "tmpfs")
    await volumes.bind_sub_path(pod, mounted["disk"], "c", 0, "a/b")
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()
    assert await volumes.pods_on_disk() == set()


async def test_a_mount_in_use_is_reported_and_stays_while_other_volumes_go(
    folders: PodFolders, volumes: Volumes
) -> None:
    mounted = await volumes.prepare(pod_with(MEMORY, DISK))
    disk, memory = Path(mounted["disk"].host_path), Path(mounted["mem"].host_path)
    (disk / "data").touch()
    with (memory / "open").open("w"):
        with pytest.raises(VolumeBusy, match="busy") as caught:
            await volumes.remove_pod("u1")
        assert (memory / "open").exists()
    assert caught.value.path == memory
    assert not disk.exists()
    await volumes.remove_pod("u1")
    assert await volumes.pods_on_disk() == set()


async def test_a_mount_behind_a_symlink_stays_while_another_is_in_use(
    folders: PodFolders, volumes: Volumes, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    mount("tmpfs", others, "tmpfs")
    mounted = await volumes.prepare(pod_with(MEMORY, DISK))
    disk, memory = Path(mounted["disk"].host_path), Path(mounted["mem"].host_path)
    disk.rmdir()
    disk.symlink_to(others)
    with (memory / "open").open("w"), pytest.raises(VolumeBusy, match="busy"):
        await volumes.remove_pod("u1")
    assert {each.path for each in mounts_of(folders)} == {others.resolve(), memory.resolve()}
    assert not disk.is_symlink()


async def test_deleting_stops_at_a_mount_that_appears_while_it_goes_on(
    folders: PodFolders, volumes: Volumes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    path = Path((await volumes.prepare(pod_with(DISK)))["disk"].host_path)
    (path / "inner").mkdir()
    mount(str(precious), path / "inner", flags=MS_BIND)
    monkeypatch.setattr("trio_kubelet.volumes.unmounting.mount_points", lambda pod: ())
    with pytest.raises(OSError, match="cross-device"):
        await volumes.remove_pod("u1")
    assert (precious / "data").exists()


class TestSubPath:
    async def test_a_file_of_the_volume_is_bound(
        self, folders: PodFolders, volumes: Volumes
    ) -> None:
        pod = pod_with(DISK)
        disk = (await volumes.prepare(pod))["disk"]
        (Path(disk.host_path) / "file").write_text("hello")
        bound = await volumes.bind_sub_path(pod, disk, "c", 3, "file")
        assert bound == str(folders.root / "pods/u1/volume-subpaths/disk/c/3")
        assert Path(bound).read_text() == "hello"

    async def test_a_missing_folder_is_made_with_the_mode_of_the_volume(
        self, volumes: Volumes
    ) -> None:
        pod = pod_with(DISK)
        disk = (await volumes.prepare(pod))["disk"]
        Path(disk.host_path).chmod(0o2775)
        await volumes.bind_sub_path(pod, disk, "c", 0, "new/folder")
        made = Path(disk.host_path) / "new" / "folder"
        assert made.stat().st_mode & 0o7777 == 0o2775

    async def test_binding_again_keeps_the_mount_unless_the_file_was_replaced(
        self, folders: PodFolders, volumes: Volumes
    ) -> None:
        pod = pod_with(DISK)
        disk = (await volumes.prepare(pod))["disk"]
        file = Path(disk.host_path) / "file"
        file.write_text("old")
        bound = Path(await volumes.bind_sub_path(pod, disk, "c", 0, "file"))
        await volumes.bind_sub_path(pod, disk, "c", 0, "file")
        assert len(mounts_of(folders)) == 1
        (file.parent / "other").write_text("new")
        (file.parent / "other").replace(file)
        await volumes.bind_sub_path(pod, disk, "c", 0, "file")
        assert len(mounts_of(folders)) == 1
        assert bound.read_text() == "new"

    async def test_a_folder_may_take_the_place_of_a_file(self, volumes: Volumes) -> None:
        pod = pod_with(DISK)
        disk = (await volumes.prepare(pod))["disk"]
        file = Path(disk.host_path) / "x"
        file.write_text("old")
        bound = Path(await volumes.bind_sub_path(pod, disk, "c", 0, "x"))
        file.unlink()
        file.mkdir()
        await volumes.bind_sub_path(pod, disk, "c", 0, "x")
        assert bound.is_dir()

    @pytest.mark.parametrize("target", ["/etc", "../../../../../../../etc", "/proc/self/root"])
    async def test_a_symlink_out_of_the_volume_is_refused(
        self, folders: PodFolders, volumes: Volumes, target: str
    ) -> None:
        pod = pod_with(DISK)
        disk = (await volumes.prepare(pod))["disk"]
        (Path(disk.host_path) / "evil").symlink_to(target)
        for sub_path in ("evil", "evil/passwd", "evil/new"):
            with pytest.raises(VolumeError, match="failed to prepare subPath"):
                await volumes.bind_sub_path(pod, disk, "c", 0, sub_path)
        assert mounts_of(folders) == ()

    @pytest.mark.parametrize("sub_path", ["/etc", "..", "a/../../x", "a\0b"])
    async def test_a_path_that_is_not_inside_is_refused(
        self, volumes: Volumes, sub_path: str
    ) -> None:
        pod = pod_with(DISK)
        disk = (await volumes.prepare(pod))["disk"]
        with pytest.raises(VolumeError, match="must stay inside its volume"):
            await volumes.bind_sub_path(pod, disk, "c", 0, sub_path)

    async def test_a_folder_of_the_node_has_sub_paths_too(
        self, volumes: Volumes, tmp_path: Path
    ) -> None:
        (tmp_path / "node").mkdir()
        volume = Volume(name="h", host_path=HostPathVolumeSource(path=str(tmp_path / "node")))
        pod = pod_with(volume)
        host = (await volumes.prepare(pod))["h"]
        bound = Path(await volumes.bind_sub_path(pod, host, "c", 0, "made"))
        (bound / "file").touch()
        await volumes.remove_pod("u1")
        assert (tmp_path / "node" / "made" / "file").exists()


def test_a_folder_is_put_on_a_shared_mount_once(tmp_path: Path) -> None:
    mount("tmpfs", tmp_path, "tmpfs")
    mount("", tmp_path, flags=MS_PRIVATE)
    root = tmp_path / "root"
    root.mkdir()
    try:
        assert make_shared(root)
        on = mount_of(root.resolve(), mount_points())
        assert on is not None
        assert (on.path, on.is_shared) == (root.resolve(), True)
        assert not make_shared(root)
    finally:
        for each in mounts_at_or_below(tmp_path.resolve(), mount_points()):
            unmount(each.path)


def test_a_disk_of_its_own_is_shared_as_it_is(tmp_path: Path) -> None:
    mount("tmpfs", tmp_path, "tmpfs")
    mount("", tmp_path, flags=MS_PRIVATE)
    try:
        assert make_shared(tmp_path)
        (only,) = mounts_at_or_below(tmp_path.resolve(), mount_points())
        assert only.is_shared
    finally:
        unmount(tmp_path)
