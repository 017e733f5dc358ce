"""Volumes of the source fc, on recorded folders of sysfs: this machine has no such adapter."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from attrs import define, evolve, field

from tests.unit.volumes.persistent import claiming_pod, persistent
from trio_kubelet.k8s import FCVolumeSource, PersistentVolume
from trio_kubelet.kernel.scsi_disks import SCSIDisks
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.volumes import disk_paths
from trio_kubelet.volumes.disks import AttachedDisk
from trio_kubelet.volumes.fc import FCDisks
from trio_kubelet.volumes.resolved import ResolvedVolume, resolve_claimed

WWN, OTHER_WWN = "500A0981891B8DC5", "500a0981891b8dc6"
THREADS = FairLimiter(1, 1).share("")
BY_TARGET = FCVolumeSource(target_wwns=(WWN, OTHER_WWN), lun=2)
BY_ID = FCVolumeSource(wwids=("3600508b400105e21 0000900000490000",))


def a_volume(source: FCVolumeSource, mode: str = "Filesystem") -> ResolvedVolume:
    pod = claiming_pod(as_device=mode == "Block")
    made: PersistentVolume = persistent(mode=mode)
    spec = evolve(made.spec, host_path=None, fc=source)
    return resolve_claimed(pod, pod.spec.volumes[0], evolve(made, spec=spec))


@define
class Machine:
    """A machine with one adapter, and the kinds of disks on it."""

    folder: Path
    disks: SCSIDisks = field(init=False)
    kind: FCDisks = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.disks = SCSIDisks(sys=self.folder / "sys", dev=self.folder / "dev")
        self.kind = FCDisks(self.disks)
        for each in ("sys/class/fc_host/host1", "sys/class/scsi_host/host1", "dev/disk/by-path"):
            (self.folder / each).mkdir(parents=True)
        (self.folder / "dev/disk/by-id").mkdir()
        os.mkfifo(self.scan_file)

    @property
    def scan_file(self) -> Path:
        return self.folder / "sys/class/scsi_host/host1/scan"

    def add(self, name: str, link: str) -> None:
        """Show a disk, as the kernel and udev do."""
        (self.folder / "dev" / name).touch()
        (self.folder / "dev/disk" / link).symlink_to(f"../../{name}")
        device = self.folder / "sys/block" / name / "device"
        device.mkdir(parents=True)
        (device / "delete").touch()

    def join(self, *names: str) -> None:
        """Make a multipath device `dm-0` of disks."""
        device = self.folder / "sys/block/dm-0"
        (device / "slaves").mkdir(parents=True)
        (device / "dm").mkdir()
        (device / "dm/uuid").write_text("mpath-3600508b4\n")
        (device / "dm/name").write_text("mpatha\n")
        for name in names:
            (device / "slaves" / name).symlink_to(f"../../{name}")

    async def at_the_scan(self, then: Callable[[], None]) -> str:
        """Wait until the adapter is told to look for disks, and do something; returns what for."""
        text = await trio.to_thread.run_sync(self.scan_file.read_text)
        then()
        return text

    def deleted(self) -> list[str]:
        """Return the disks that the kernel was told to forget."""
        files = self.folder.glob("sys/block/*/device/delete")
        return sorted(each.parents[1].name for each in files if each.read_text())

    async def attach(self, source: FCVolumeSource) -> Path:
        disk = self.kind.disk(a_volume(source))
        return await self.kind.attach(disk, claiming_pod(), a_volume(source), THREADS)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("source", "name", "folder"),
    [
        (BY_TARGET, f"[{WWN} {OTHER_WWN}]:2", f"{WWN}-{OTHER_WWN}-lun-2"),
        (BY_ID, f"[{BY_ID.wwids[0]}]", BY_ID.wwids[0]),
    ],
)
def test_names_and_places_are_those_of_the_go_kubelet(
    machine: Machine, source: FCVolumeSource, name: str, folder: str
) -> None:
    disk = machine.kind.disk(a_volume(source))
    assert disk.unique_name == f"kubernetes.io/fc/{name}"
    assert disk.mount_point(Path("/r")) == Path("/r/plugins/kubernetes.io/fc", folder)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (FCVolumeSource(wwids=("a",) * 17), "fc.wwids: Too many: 17: must have at most 16 items"),
        (FCVolumeSource(target_wwns=("a",) * 17, lun=1), "fc.targetWWNs: Too many: 17: "),
        (FCVolumeSource(wwids=("a" * 129,)), "fc.wwids: Too long: may not be more than 128 bytes"),
        (FCVolumeSource(wwids=("a" * 128,) * 9), "fc: the name of the disk: Too long: .* 1024 byt"),
    ],
)
def test_a_source_that_has_too_much_is_refused(
    machine: Machine, source: FCVolumeSource, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        machine.kind.disk(a_volume(source))


async def test_the_adapters_look_for_the_lun_and_the_disk_is_found_by_its_link(
    machine: Machine,
) -> None:
    link = f"by-path/pci-0000:41:00.0-fc-0x{WWN.lower()}-lun-2"
    found: list[Path] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def attach() -> None:
                found.append(await machine.attach(BY_TARGET))

            nursery.start_soon(attach)
            scanned = await machine.at_the_scan(lambda: machine.add("sdb", link))
    assert scanned == "- - 2"
    assert found == [machine.folder / "dev/sdb"]
    assert await machine.attach(BY_TARGET) == found[0], "what is there is not scanned for"


async def test_another_lun_or_target_is_another_disk(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_paths, "WAIT_SECONDS", 0.0)
    for name, link in (("sdb", f"fc-0x{WWN.lower()}-lun-20"), ("sdc", "fc-0x5000-lun-2")):
        machine.add(name, f"by-path/pci-0-{link}")
    machine.scan_file.unlink()
    machine.scan_file.touch()
    with pytest.raises(OSError, match="no disk appeared for"):
        await machine.attach(BY_TARGET)


async def test_a_machine_without_an_adapter_says_so(machine: Machine) -> None:
    (machine.folder / "sys/class/fc_host/host1").rmdir()
    with pytest.raises(OSError, match="this node has no Fibre Channel adapter"):
        await machine.attach(BY_TARGET)


async def test_several_paths_to_a_disk_are_one_multipath_device(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, wwn in (("sdb", WWN.lower()), ("sdc", OTHER_WWN)):
        machine.add(name, f"by-path/pci-0-fc-0x{wwn}-lun-2")
    machine.join("sdb", "sdc")
    assert await machine.attach(BY_TARGET) == machine.folder / "dev/dm-0"
    program = tmp_path / "bin/multipath"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/told; rm -r {tmp_path}/sys/block/dm-0\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    await machine.kind.detach(machine.kind.disk(a_volume(BY_TARGET)), list, THREADS)
    assert (tmp_path / "told").read_text() == "-f mpatha\n"
    assert machine.deleted() == ["sdb", "sdc"]


async def test_a_disk_that_is_in_use_otherwise_is_not_taken_away(machine: Machine) -> None:
    machine.add("sdb", "by-id/scsi-3600508b400105e21_0000900000490000")
    holders = machine.folder / "sys/block/sdb/holders"
    holders.mkdir()
    (holders / "dm-7").symlink_to("../../dm-7")
    disk: AttachedDisk = machine.kind.disk(a_volume(BY_ID))
    assert machine.kind.device(disk) == machine.folder / "dev/sdb"
    with pytest.raises(OSError, match="disk sdb is still mounted, or another device is made of it"):
        await machine.kind.detach(disk, list, THREADS)
    assert machine.deleted() == []
    (holders / "dm-7").unlink()
    await machine.kind.detach(disk, list, THREADS)
    assert machine.deleted() == ["sdb"]
