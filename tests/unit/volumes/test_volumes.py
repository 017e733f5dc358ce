# ruff: noqa: ASYNC240 - the tests look at the disk themselves
import os
import stat
import threading
from pathlib import Path

import pytest
import trio
from attrs import evolve

from trio_kubelet.k8s import (
    Container,
    EmptyDirVolumeSource,
    FCVolumeSource,
    HostPathVolumeSource,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    Quantity,
    ResourceRequirements,
    Volume,
    VolumeMount,
)
from trio_kubelet.references import NoReferences
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.empty_dir import EmptyDir, hugepage_size_bytes, memory_size_bytes
from trio_kubelet.volumes.plugin import (
    MAX_THREADS,
    MAX_THREADS_OF_NAMESPACE,
    MAX_THREADS_OF_POD,
    MountedVolume,
    VolumeError,
    VolumesNotReady,
    VolumeThreads,
)
from trio_kubelet.volumes.resolved import ResolvedVolume, resolve_own
from trio_kubelet.volumes.resolver import VolumeResolver
from trio_kubelet.volumes.volumes import Volumes

MI = 1 << 20


def pod_with(*volumes: Volume, fs_group: int | None = None, unused: tuple[Volume, ...] = ()) -> Pod:
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in volumes)
    return Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u1"),
        spec=PodSpec(
            containers=(Container(name="c", volume_mounts=mounts),),
            volumes=(*volumes, *unused),
            security_context=PodSecurityContext(fs_group=fs_group),
        ),
    )


def empty_dir(name: str = "data") -> Volume:
    return Volume(name=name, empty_dir=EmptyDirVolumeSource())


@pytest.fixture
def folders(tmp_path: Path) -> PodFolders:
    return PodFolders(tmp_path)


@pytest.fixture
def volumes(folders: PodFolders) -> Volumes:
    return local_volumes(folders, lambda pod: 64 * MI)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_pod_has_its_folders_with_their_modes(
    folders: PodFolders, volumes: Volumes
) -> None:
    before = os.umask(0o077)
    try:
        mounted = await volumes.prepare(pod_with(empty_dir()))
    finally:
        os.umask(before)
    root = folders.root
    for path in ("pods", "pods/u1", "pods/u1/volumes", "pods/u1/containers", "pods/u1/plugins"):
        assert mode(root / path) == 0o750, path
    volume = root / "pods/u1/volumes/kubernetes.io~empty-dir/data"
    assert mounted == {
        "data": MountedVolume(name="data", host_path=str(volume), selinux_relabel=True)
    }
    assert mode(volume) == 0o777
    assert (root / "pods/u1/plugins/kubernetes.io~empty-dir/data/ready").is_file()


async def test_what_a_pod_wrote_survives_a_second_look(volumes: Volumes) -> None:
    pod = pod_with(empty_dir())
    path = Path((await volumes.prepare(pod))["data"].host_path)
    (path / "written").write_text("x")
    path.chmod(0o700)
    await volumes.prepare(pod)
    assert (path / "written").exists()
    assert mode(path) == 0o700


async def test_a_volume_that_lost_its_folder_is_made_again(volumes: Volumes) -> None:
    pod = pod_with(empty_dir())
    path = Path((await volumes.prepare(pod))["data"].host_path)
    path.rmdir()
    await volumes.prepare(pod)
    assert path.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to a group needs root")
async def test_the_folder_belongs_to_the_fs_group(volumes: Volumes) -> None:
    mounted = await volumes.prepare(pod_with(empty_dir(), fs_group=4321))
    path = Path(mounted["data"].host_path)
    assert (path.stat().st_gid, mode(path)) == (4321, 0o2777)


async def test_volumes_that_no_container_mounts_are_left_out(volumes: Volumes) -> None:
    pod = pod_with(empty_dir("used"), unused=(empty_dir("unused"),))
    assert set(await volumes.prepare(pod)) == {"used"}


async def test_every_volume_that_fails_is_named(volumes: Volumes, tmp_path: Path) -> None:
    pod = pod_with(
        Volume(name="a", fc=FCVolumeSource(wwids=("w",))),
        empty_dir("b"),
        Volume(name="c", host_path=HostPathVolumeSource(path=str(tmp_path / "x"), type="File")),
        Volume(name="d", empty_dir=EmptyDirVolumeSource(medium="Paper")),
    )
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(pod)
    assert [message for _, message in caught.value.failures] == [
        'MountVolume.SetUp failed for volume "a" : no volume plugin matched: '
        "this kubelet has no volumes of the kind fc",
        'MountVolume.SetUp failed for volume "c" : hostPath type check failed: '
        f"{tmp_path / 'x'} is not a file",
        'MountVolume.SetUp failed for volume "d" : unknown storage medium "Paper"',
    ]


async def test_paths_of_one_pod_that_hang_leave_threads_to_the_paths_of_others(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, hanging = threading.Event(), trio.Semaphore(0)

    def hang_on_the_dead_disk(path: Path, _kind: str) -> str:
        if path.is_relative_to("/dead"):
            trio.from_thread.run_sync(hanging.release)
            over.wait(300)
        return ""

    def on_node(path: str) -> Volume:
        return Volume(name=path.strip("/"), host_path=HostPathVolumeSource(path=path))

    monkeypatch.setattr("trio_kubelet.volumes.host_path._problem", hang_on_the_dead_disk)
    many = [evolve(on_node("/dead"), name=f"v{n}") for n in range(2 * MAX_THREADS)]
    hostile = evolve(pod_with(*many), metadata=ObjectMeta(name="h", namespace="n", uid="hostile"))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(volumes.prepare, hostile)
            try:
                for _ in range(MAX_THREADS_OF_POD):
                    await hanging.acquire()
                with trio.move_on_after(10):
                    assert set(await volumes.prepare(pod_with(on_node("/alive")))) == {"alive"}
                    nursery.cancel_scope.cancel()
            finally:
                over.set()
    assert nursery.cancel_scope.cancel_called


async def test_volumes_of_a_pod_are_prepared_side_by_side(folders: PodFolders) -> None:
    meeting = trio.Event()

    class Waits:
        name = "test/waits"
        arrived = 0

        async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
            self.arrived += 1
            if self.arrived == 3:
                meeting.set()
            await meeting.wait()
            return MountedVolume(name=volume.name, host_path="/x")

        async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None: ...

    threads = VolumeThreads()
    resolver = VolumeResolver(NoReferences(), lambda: None, folders, threads)
    volumes = Volumes(folders, resolver, {"empty_dir": Waits()}, threads)
    with trio.fail_after(60):
        await volumes.prepare(pod_with(empty_dir("a"), empty_dir("b"), empty_dir("c")))


@pytest.mark.parametrize(
    "hanging",
    [
        "trio_kubelet.volumes.host_path._problem",
        "trio_kubelet.volumes.volumes._remove_volume",
        "trio_kubelet.volumes.sub_paths._Look.find",
    ],
)
async def test_paths_that_hang_hold_up_no_other_volume_and_no_housekeeping(
    volumes: Volumes,
    folders: PodFolders,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hanging: str,
) -> None:
    """A network file system that does not answer, or a large volume that is removed."""
    over, hanging_threads = threading.Event(), trio.Semaphore(0)

    def hang(*_: object) -> str:
        trio.from_thread.run_sync(hanging_threads.release)
        over.wait(300)
        return ""

    async def begin(number: int) -> None:
        pod = pod_with(host if "host_path" in hanging else empty_dir())
        pod = evolve(pod, metadata=ObjectMeta(name="p", namespace="n", uid=f"slow-{number}"))
        if "sub_path" in hanging:
            mounted = folders.volumes(pod.metadata.uid) / "kubernetes.io~nfs/share"
            path = mounted if number % 2 else tmp_path / "share"
            share = MountedVolume(name="share", host_path=str(path))
            await volumes.bind_sub_path(pod, share, "c", 0, "here")
            return
        await volumes.prepare(pod)
        await volumes.tear_down(pod.metadata.uid)

    host = Volume(name="share", host_path=HostPathVolumeSource(path="/nfs", type="Directory"))
    monkeypatch.setattr(hanging, hang)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(2 * MAX_THREADS):
                nursery.start_soon(begin, number)
            try:
                for _ in range(MAX_THREADS_OF_NAMESPACE):
                    await hanging_threads.acquire()
                await volumes.prepare(pod_with(empty_dir()))
                assert "u1" in await volumes.pods_on_disk()
            finally:
                over.set()


async def test_tear_down_removes_the_volumes_and_leaves_the_rest(
    folders: PodFolders, volumes: Volumes
) -> None:
    mounted = await volumes.prepare(pod_with(empty_dir()))
    (Path(mounted["data"].host_path) / "file").touch()
    (folders.pod("u1") / "etc-hosts").touch()
    await volumes.tear_down("u1")
    await volumes.tear_down("u1")
    assert not list(folders.volumes("u1").iterdir())
    assert not list((folders.pod("u1") / "plugins").rglob("ready"))
    assert (folders.pod("u1") / "etc-hosts").exists()
    assert await volumes.pods_on_disk() == {"u1"}
    await volumes.remove_pod("u1")
    assert await volumes.pods_on_disk() == set()


async def test_what_another_plugin_left_is_not_deleted_with_its_content(
    folders: PodFolders, volumes: Volumes
) -> None:
    nfs = folders.volume("u1", "kubernetes.io/nfs", "share")
    nfs.mkdir(parents=True)
    (nfs / "precious").touch()
    with pytest.raises(OSError, match="not empty"):
        await volumes.tear_down("u1")
    assert (nfs / "precious").exists()


async def test_a_volume_replaced_by_a_symlink_is_not_followed(
    folders: PodFolders, volumes: Volumes, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    path = Path((await volumes.prepare(pod_with(empty_dir())))["data"].host_path)
    path.rmdir()
    path.symlink_to(outside)
    await volumes.remove_pod("u1")
    assert (outside / "precious").exists()
    assert await volumes.pods_on_disk() == set()


async def test_removing_a_pod_that_is_not_there_is_fine(volumes: Volumes) -> None:
    await volumes.remove_pod("never-was")
    assert await volumes.pods_on_disk() == set()


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "a\0b"])
def test_a_uid_never_leads_out_of_the_folder(folders: PodFolders, uid: str) -> None:
    with pytest.raises(ValueError, match="cannot name a folder"):
        folders.pod(uid)


@pytest.mark.parametrize(
    ("limit", "available", "size"),
    [(None, 100, 100), ("40", 100, 40), ("400", 100, 100), ("0", 100, 100)],
)
def test_a_volume_in_memory_is_no_larger_than_the_pod(
    limit: str | None, available: int, size: int
) -> None:
    assert memory_size_bytes(Quantity(limit) if limit else None, available) == size


async def test_huge_pages_of_the_pod_as_a_whole_count_for_the_page_size(volumes: Volumes) -> None:
    pages = Volume(name="data", empty_dir=EmptyDirVolumeSource(medium="HugePages"))
    pod = pod_with(pages)
    sizes = {name: Quantity("1Gi") for name in ("hugepages-2Mi", "hugepages-1Gi")}
    whole = ResourceRequirements(requests=sizes)
    with pytest.raises(VolumesNotReady, match="no resource request for huge pages"):
        await volumes.prepare(pod)
    with pytest.raises(VolumesNotReady, match="multiple huge page sizes"):
        await volumes.prepare(evolve(pod, spec=evolve(pod.spec, resources=whole)))


def test_the_page_size_comes_from_the_medium_or_from_the_only_request() -> None:
    two = {"hugepages-2Mi": Quantity("4Mi"), "cpu": Quantity("1")}
    one = {"hugepages-1Gi": Quantity("1Gi")}
    assert hugepage_size_bytes("HugePages", [two, two]) == 2 * MI
    assert hugepage_size_bytes("HugePages-1Gi", [two, one]) == 1024 * MI
    with pytest.raises(ValueError, match="multiple huge page sizes"):
        hugepage_size_bytes("HugePages", [two, one])
    with pytest.raises(ValueError, match="no resource request for huge pages"):
        hugepage_size_bytes("HugePages-1Gi", [two])


async def test_an_unmountable_size_is_told_in_words(folders: PodFolders) -> None:
    plugin = EmptyDir(folders, lambda pod: MI, VolumeThreads())
    volume = Volume(name="v", empty_dir=EmptyDirVolumeSource(medium="HugePages"))
    folders.create("u1")
    with pytest.raises(VolumeError, match="no resource request for huge pages"):
        await plugin.set_up(pod_with(volume), resolve_own(volume))


async def test_a_folder_that_no_pod_can_have_is_no_pod(
    folders: PodFolders, volumes: Volumes
) -> None:
    for name in (b"uid-1", b"\xff", b"a b", b".hidden"):
        (folders.pods / os.fsdecode(name)).mkdir(parents=True)
    assert await volumes.pods_on_disk() == {"uid-1"}
