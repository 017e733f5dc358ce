"""flexVolumes: what the program of a driver is asked for, and what comes of its answers."""

import base64
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, evolve

from tests.unit.references.cluster import open_cluster
from trio_kubelet.k8s import (
    Container,
    FlexVolumeSource,
    LocalObjectReference,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    Secret,
    Volume,
    VolumeMount,
)
from trio_kubelet.k8s.kinds import SECRETS
from trio_kubelet.kernel.mountinfo import mount_points, mounts_at_or_below
from trio_kubelet.references import NoReferences, References
from trio_kubelet.volumes import NodeOfVolumes, PodFolders, flex_volume, local_volumes
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

NAME = "example.com/disk"
NO_ATTACH = '{"status": "Success", "capabilities": {"attach": false}}'
SUCCESS = '{"status": "Success"}'


@define
class Driver:
    """The driver's program on the host, and what it was asked for."""

    folder: Path
    name: str = NAME

    def install(
        self, mount: str = "", unmount: str = "", init: str = f"echo '{NO_ATTACH}'"
    ) -> None:
        """Have the program do these scripts; those of `mount` and `unmount` have a folder, $2."""
        place = self.folder / self.name.replace("/", "~")
        place.mkdir(parents=True, exist_ok=True)
        new = place / ".new"
        new.write_text(
            f"""#!/bin/sh
printf '%s\\n' "$*" >>{self.folder}/calls
case $1 in
init) {init};;
mount) {mount or f"echo '{SUCCESS}'"};;
unmount) {unmount or f"echo '{SUCCESS}'"};;
*) echo '{{"status": "Not supported"}}'; exit 1;;
esac
"""
        )
        new.chmod(0o755)
        new.rename(place / self.name.rpartition("/")[2])

    def calls(self) -> list[str]:
        """The calls so far, without their options."""
        return [line.split(" {")[0] for line in self._lines()]

    def options(self) -> Mapping[str, str]:
        """The options of the last `mount`."""
        told = [line for line in self._lines() if line.startswith("mount ")][-1]
        options: Mapping[str, str] = json.loads(told.split(" ", 2)[2])
        return options

    def _lines(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "exec")


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PodFolders]:
    (tmp_path / "kubelet").mkdir()
    yield PodFolders(tmp_path / "kubelet")
    for each in mounts_at_or_below((tmp_path / "kubelet").resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def place(folders: PodFolders) -> Path:
    """The folder of the pod's volume."""
    return folders.volume("u1", NAME, "v")


def agent(
    folders: PodFolders, driver: Driver, data: References | NoReferences | None = None
) -> Volumes:
    """The volumes as an agent has them that was just started."""
    node = NodeOfVolumes(plugin_folder=driver.folder)
    return local_volumes(folders, lambda pod: 1 << 20, data=data, node=node)


def a_pod(name: str = NAME, fs_group: int | None = None, **source: object) -> Pod:
    flex = FlexVolumeSource(driver=name, **source)  # type: ignore[arg-type]
    mount = VolumeMount(name="v", mount_path="/v")
    return Pod(
        metadata=ObjectMeta(name="p", namespace="shop", uid="u1"),
        spec=PodSpec(
            containers=(Container(name="c", volume_mounts=(mount,)),),
            volumes=(Volume(name="v", flex_volume=flex),),
            service_account_name="sa",
            security_context=PodSecurityContext(fs_group=fs_group),
        ),
    )


async def failure(volumes: Volumes, pod: Pod) -> str:
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(pod)
    [(reason, message)] = caught.value.failures
    assert reason == "FailedMount"
    return message.removeprefix('MountVolume.SetUp failed for volume "v" : ')


async def test_a_driver_mounts_and_unmounts_a_volume(
    folders: PodFolders, driver: Driver, place: Path
) -> None:
    driver.install()
    volumes = agent(folders, driver)
    pod = a_pod(fs_type="ext4", options={"size": "1"}, read_only=True, fs_group=4321)
    mounted = (await volumes.prepare(pod))["v"]
    assert (mounted.host_path, mounted.read_only) == (str(place), True)
    assert driver.options() == {
        "size": "1",
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/readwrite": "ro",
        "kubernetes.io/pvOrVolumeName": "v",
        "kubernetes.io/pod.name": "p",
        "kubernetes.io/pod.namespace": "shop",
        "kubernetes.io/pod.uid": "u1",
        "kubernetes.io/serviceAccount.name": "sa",
        "kubernetes.io/mounterArgs.FsGroup": "4321",
    }
    await volumes.remove_pod("u1")
    assert driver.calls() == ["init", f"mount {place}", f"unmount {place}"]
    assert not folders.pod("u1").exists()


async def test_a_driver_is_told_the_secret_of_its_type(folders: PodFolders, driver: Driver) -> None:
    driver.install()
    async with open_cluster() as cluster:
        for name, kind in (("login", NAME), ("other", "Opaque")):
            meta = ObjectMeta(name=name, namespace="shop")
            cluster.server.create(SECRETS, Secret(metadata=meta, type=kind, data={"k": b"v"}))
        volumes = agent(folders, driver, cluster.references)
        pod = a_pod(secret_ref=LocalObjectReference(name="other"))
        cluster.references.register(pod)
        assert await failure(volumes, pod) == f"cannot get secret of type {NAME}"
        await volumes.remove_pod("u1")
        pod = a_pod(secret_ref=LocalObjectReference(name="login"))
        cluster.references.register(pod)
        await volumes.prepare(pod)
    assert driver.options()["kubernetes.io/secret/k"] == base64.b64encode(b"v").decode()


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (
            """echo '{"status": "Failure", "message": "no such disk"}'; exit 1""",
            "mount command failed, status: Failure, reason: no such disk",
        ),
        ("echo broken >&2; exit 3", "mount command failed, exit status 3: broken"),
        ("echo []", "mount command failed, no JSON with a status: []"),
        (f"echo '{SUCCESS}'; exit 3", "mount command failed, status: Success, reason: "),
        ("cat /dev/zero", "mount command failed, its answer has more than 65536 bytes: "),
    ],
)
async def test_what_a_driver_does_wrong_is_told(
    folders: PodFolders, driver: Driver, mount: str, words: str
) -> None:
    driver.install(mount)
    message = await failure(agent(folders, driver), a_pod())
    assert message.startswith(words)
    assert len(message) < 4096


async def test_a_driver_that_hangs_is_given_up_at_its_time(
    folders: PodFolders, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.install(f"[ -e {tmp_path}/hang ] && exec sleep 1000; echo '{SUCCESS}'")
    volumes = agent(folders, driver)
    await volumes.prepare(a_pod())
    (tmp_path / "hang").touch()
    monkeypatch.setattr(flex_volume, "CALL_SECONDS", 0.2)
    message = await failure(volumes, a_pod())
    assert message.startswith("mount command failed, context deadline exceeded after 0.2 s")


async def test_a_driver_that_hangs_as_it_unmounts_holds_up_no_other(
    folders: PodFolders, driver: Driver, tmp_path: Path
) -> None:
    mounts = f"mount -t tmpfs none $2 && echo '{SUCCESS}'"
    driver.install(mounts, unmount=f"echo >>{tmp_path}/hangs; exec sleep 1000")
    other = Driver(driver.folder, "example.com/other")
    other.install(mounts)
    volumes = agent(folders, driver)
    uids = [f"u{number}" for number in range(flex_volume.CALLS)]
    for uid in uids:
        await volumes.prepare(as_pod(a_pod(), uid))
    await volumes.prepare(as_pod(a_pod(other.name), "other"))
    async with trio.open_nursery() as nursery:
        for uid in uids:
            nursery.start_soon(volumes.tear_down, uid)
        with trio.fail_after(60):
            while not is_full(tmp_path / "hangs"):
                await trio.testing.wait_all_tasks_blocked(0.01)
            await volumes.tear_down("other")
        nursery.cancel_scope.cancel()


def is_full(hangs: Path) -> bool:
    """True if the driver has all the slots that one may have."""
    return hangs.exists() and len(hangs.read_text().splitlines()) == flex_volume.CALLS_OF_NAMESPACE


def as_pod(pod: Pod, uid: str) -> Pod:
    return evolve(pod, metadata=evolve(pod.metadata, uid=uid))


async def test_a_driver_that_is_not_there_is_named(folders: PodFolders, driver: Driver) -> None:
    message = await failure(agent(folders, driver), a_pod())
    assert message == (
        f"no volume plugin matched: flexVolume driver {NAME} is not installed: there is no "
        f"{driver.folder}/example.com~disk/disk"
    )


@pytest.mark.parametrize("name", ["../disk", "a/b/c", "/disk", "kubernetes.io/empty-dir"])
async def test_a_name_leads_nowhere_else(folders: PodFolders, driver: Driver, name: str) -> None:
    assert "is " in (message := await failure(agent(folders, driver), a_pod(name)))
    assert message.startswith(repr(name))


async def test_a_driver_that_attaches_is_refused_until_it_is_replaced(
    folders: PodFolders, driver: Driver
) -> None:
    driver.install(init=f"echo '{SUCCESS}'")
    volumes = agent(folders, driver)
    assert "wants volumes to be attached" in await failure(volumes, a_pod())
    assert driver.calls() == ["init"]
    await volumes.remove_pod("u1")
    driver.install()
    await volumes.prepare(a_pod())


async def test_a_volume_that_a_driver_does_not_unmount_stays(
    folders: PodFolders, driver: Driver, place: Path
) -> None:
    driver.install(unmount="""echo '{"status": "Failure", "message": "busy"}'; exit 1""")
    volumes = agent(folders, driver)
    await volumes.prepare(a_pod())
    (place / "data").touch()
    with pytest.raises(VolumeBusy, match="unmount command failed, status: Failure, reason: busy"):
        await volumes.remove_pod("u1")
    assert (place / "data").exists()
    driver.install(unmount=f"rm $2/data; echo '{SUCCESS}'")
    await volumes.remove_pod("u1")
    assert not folders.pod("u1").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_mounted_volume_is_mounted_once_and_a_doubtful_one_asked_for_again(
    folders: PodFolders, driver: Driver, place: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "data").write_text("kept")
    bind = f"mountpoint -q $2 || mount --bind {disk} $2"
    driver.install(f"{bind}; exit 1", f"umount $2; echo '{SUCCESS}'")
    await failure(agent(folders, driver), a_pod())
    driver.install(f"{bind}; echo '{SUCCESS}'", f"umount $2; echo '{SUCCESS}'")
    for _ in range(3):  # by an agent that was started anew each time
        await agent(folders, driver).prepare(a_pod(fs_group=4321))
    assert driver.calls() == ["init", f"mount {place}"] * 2 + ["init"] * 2
    assert (disk / "data").stat().st_gid == 4321
    await agent(folders, driver).remove_pod("u1")
    assert driver.calls()[-1] == f"unmount {place}"
    assert (disk / "data").read_text() == "kept"
