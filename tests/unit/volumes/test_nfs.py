"""Volumes of NFS servers: what `mount` and `umount` are told, and what comes of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from attrs import define, evolve

from tests.unit.devices.test_registration import until_there
from tests.unit.references.cluster import open_cluster
from tests.unit.volumes.persistent import claim, claiming_pod, persistent
from trio_kubelet.k8s import (
    Container,
    EmptyDirVolumeSource,
    NFSVolumeSource,
    ObjectMeta,
    PersistentVolume,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from trio_kubelet.k8s.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from trio_kubelet.kernel.mountinfo import mount_points, mounts_at_or_below
from trio_kubelet.volumes import PodFolders, local_volumes, nfs
from trio_kubelet.volumes.mount import mount, unmount
from trio_kubelet.volumes.nfs import mount_arguments
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

SOURCE = NFSVolumeSource(server="far", path="/export")
POD = Pod(
    metadata=ObjectMeta(name="p", namespace="n", uid="u1"),
    spec=PodSpec(
        containers=(Container(name="c", volume_mounts=(VolumeMount(name="v", mount_path="/v"),)),),
        volumes=(Volume(name="v", nfs=SOURCE),),
    ),
)


@define
class Mounter:
    """The programs that mount and unmount on a host, and what they were told."""

    folder: Path

    def install(self, script: str) -> None:
        for name in ("mount", "mount.nfs"):
            self._write(name, script)

    def unmount_by(self, script: str) -> None:
        """Have volumes unmounted by another `umount` than the host's."""
        self._write("umount", script)

    def _write(self, name: str, script: str) -> None:
        self.folder.mkdir(exist_ok=True)
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/told\n{script}\n')
        program.chmod(0o755)

    def told(self) -> list[str]:
        return (self.folder / "told").read_text().splitlines()


@pytest.fixture
def mounter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounter:
    mounter = Mounter(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{mounter.folder}:{os.environ['PATH']}")
    return mounter


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PodFolders]:
    (tmp_path / "kubelet").mkdir()
    yield PodFolders(tmp_path / "kubelet")
    for each in mounts_at_or_below((tmp_path / "kubelet").resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def volumes(folders: PodFolders) -> Volumes:
    return local_volumes(folders, lambda pod: 1 << 20, privileged=True)


@pytest.mark.parametrize(
    ("server", "options", "told"),
    [
        ("far", (), "-t nfs far:/export /v"),
        ("far", ("ro",), "-t nfs -o ro far:/export /v"),
        ("10.0.0.1", ("soft", "nfsvers=4"), "-t nfs -o nfsvers=4,soft 10.0.0.1:/export /v"),
        ("fd00::1", (), "-t nfs [fd00::1]:/export /v"),
    ],
)
def test_mount_is_told_where_the_folder_is(
    server: str, options: tuple[str, ...], told: str
) -> None:
    source = NFSVolumeSource(server=server, path="/export")
    assert mount_arguments(source, Path("/v"), options) == tuple(told.split())


def test_a_server_is_no_option_of_mount() -> None:
    with pytest.raises(ValueError, match="is no name of a server"):
        mount_arguments(NFSVolumeSource(server="-o", path="/"), Path("/v"), ())


async def failure(volumes: Volumes, pod: Pod = POD) -> VolumesNotReady:
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(pod)
    return caught.value


async def test_a_host_without_the_program_says_so(
    volumes: Volumes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nfs, "_FOLDERS_OF_HELPERS", str(tmp_path))
    told = (await failure(volumes)).failures
    words = "mount.nfs is not installed on this node"
    assert told == [("FailedMount", f'MountVolume.SetUp failed for volume "v" : {words}')]


async def test_an_agent_without_the_right_to_mount_runs_nothing(
    folders: PodFolders, mounter: Mounter
) -> None:
    mounter.install("exit 0")
    volumes = local_volumes(folders, lambda pod: 1 << 20, privileged=False)
    assert "not allowed to mount" in str(await failure(volumes))
    assert not (mounter.folder / "told").exists()


async def test_the_words_of_mount_are_told_and_it_is_not_run_again_at_once(
    volumes: Volumes, mounter: Mounter, folders: PodFolders
) -> None:
    mounter.install('echo "access denied" >&2; exit 32')
    place = folders.volume("u1", "kubernetes.io/nfs", "v")
    problem = await failure(volumes)
    assert problem.failures == [
        (
            "FailedMount",
            'MountVolume.SetUp failed for volume "v" : mount failed: exit status 32\n'
            "Mounting command: mount\n"
            f"Mounting arguments: -t nfs far:/export {place}\n"
            "Output: access denied\n",
        )
    ]
    assert (await failure(volumes)).failures == []
    assert len(mounter.told()) == 1
    await volumes.remove_pod("u1")
    assert not folders.pod("u1").exists()
    await failure(volumes)
    assert len(mounter.told()) == 2, "the pod that comes back does not wait"


async def test_a_server_that_does_not_answer_is_given_up_at_its_time(
    volumes: Volumes, mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nfs, "MOUNT_SECONDS", 0.2)
    mounter.install("exec sleep 1000")
    assert "context deadline exceeded after 0.2 s" in str(await failure(volumes))


async def test_a_pod_that_goes_ends_the_program(volumes: Volumes, mounter: Mounter) -> None:
    mounter.install(f"touch {mounter.folder}/runs; exec sleep 1000")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(volumes.prepare, POD)
            await until_there(mounter.folder / "runs")
            nursery.cancel_scope.cancel()
    await volumes.remove_pod("u1")


@pytest.fixture
async def mounted(
    volumes: Volumes, mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of the pod's volume, which is mounted; its `umount` has little time."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    monkeypatch.setattr(nfs, "UNMOUNT_SECONDS", 0.5)
    mounter.install(f'for last; do :; done; exec /bin/mount --bind {tmp_path} "$last"')
    return Path((await volumes.prepare(POD))["v"].host_path)


def is_still_mounted(path: Path) -> bool:
    return bool(mounts_at_or_below(path.resolve(), mount_points()))


async def test_a_mount_that_does_not_go_in_time_is_forced(
    volumes: Volumes, mounter: Mounter, mounted: Path
) -> None:
    mounter.unmount_by('case "$@" in *--force*) exec /bin/umount "$@" ;; esac; exec sleep 1000')
    await volumes.remove_pod("u1")
    plain = f"--internal-only --no-canonicalize {mounted}"
    forced = f"--internal-only --no-canonicalize --force {mounted}"
    assert mounter.told()[1:] == [plain, forced]


async def test_a_pod_whose_mount_is_gone_waits_no_longer_for_the_server_than_its_time(
    volumes: Volumes, mounter: Mounter, folders: PodFolders, mounted: Path
) -> None:
    mounter.unmount_by('/bin/umount "$@"; exec sleep 1000')
    await volumes.remove_pod("u1")
    assert not folders.pod("u1").exists()
    assert mounter.told()[1:] == [f"--internal-only --no-canonicalize {mounted}"]


async def test_a_mount_that_even_force_does_not_take_away_is_told_and_kept(
    volumes: Volumes, mounter: Mounter, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nfs, "FORCED_UNMOUNT_SECONDS", 0.5)
    mounter.unmount_by("exec sleep 1000")
    with pytest.raises(VolumeBusy, match=r"cannot be unmounted: context deadline exceeded") as told:
        await volumes.remove_pod("u1")
    assert told.value.path == mounted
    assert is_still_mounted(mounted)


async def test_what_is_the_pods_own_is_removed_though_a_server_is_away(
    volumes: Volumes,
    folders: PodFolders,
    mounter: Mounter,
    mounted: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = (
        Volume(name="disk", empty_dir=EmptyDirVolumeSource()),
        Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory")),
    )
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in own)
    pod = evolve(POD, spec=PodSpec(containers=(Container(volume_mounts=mounts),), volumes=own))
    await volumes.prepare(pod)
    monkeypatch.setattr(nfs, "FORCED_UNMOUNT_SECONDS", 0.5)
    mounter.unmount_by("exec sleep 1000")
    with pytest.raises(VolumeBusy):
        await volumes.remove_pod("u1")
    assert is_still_mounted(mounted)
    assert [*folders.volumes("u1").glob("*/*")] == [mounted]


async def test_a_mount_in_use_is_not_forced(
    volumes: Volumes, mounter: Mounter, mounted: Path
) -> None:
    mounter.unmount_by('exec /bin/umount "$@"')
    (mounted / "in-use").touch()
    with (mounted / "in-use").open(), pytest.raises(VolumeBusy, match=r"exit status 32: .*busy"):
        await volumes.remove_pod("u1")
    assert not any("--force" in each for each in mounter.told())
    await volumes.remove_pod("u1")
    assert not is_still_mounted(mounted)


async def test_what_is_mounted_in_a_volume_goes_before_it(volumes: Volumes, mounted: Path) -> None:
    (mounted / "inner").mkdir()
    for place in (mounted / "inner", mounted):
        mount("tmpfs", place, "tmpfs")
    await volumes.remove_pod("u1")
    assert not is_still_mounted(mounted)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_claimed_folder_is_mounted_once_and_its_files_stay(
    folders: PodFolders, mounter: Mounter, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    export.mkdir()
    (export / "data").write_text("kept")
    mounter.install(f'for last; do :; done; exec /bin/mount --bind {export} "$last"')
    place = folders.root / "pods/u1/volumes/kubernetes.io~nfs/pv-data"
    async with open_cluster() as cluster:
        made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
        found = persistent(bound_to=made.metadata.uid, mount_options=("nfsvers=4",))
        cluster.server.create(PERSISTENT_VOLUMES, on_server(found))
        for _ in range(2):  # The second time by an agent that was started anew.
            volumes = local_volumes(
                folders, lambda pod: 1 << 20, data=cluster.references, privileged=True
            )
            mounted = (await volumes.prepare(claiming_pod()))["files"]
            assert mounted.host_path == str(place)
        assert (place / "data").read_text() == "kept"
        assert mounter.told() == [f"-t nfs -o nfsvers=4 far:/export {place}"]
        await volumes.remove_pod("u1")
        assert not folders.pod("u1").exists()
        assert (export / "data").read_text() == "kept"


def on_server(volume: PersistentVolume) -> PersistentVolume:
    return evolve(volume, spec=evolve(volume.spec, local=None, host_path=None, nfs=SOURCE))
