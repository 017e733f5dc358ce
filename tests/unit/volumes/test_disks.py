"""Disks that are attached once for all pods of a node, with tools that only say so.

The programs are scripts, which show a recorded session of a target in place of sysfs. With a real
target and the real tools `tests/integration/test_iscsi.py` does it.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from tests.trio_clock import TrioClock
from tests.unit.volumes.test_iscsi import TARGET, recorded_session
from trio_kubelet.k8s import (
    AttachedVolume,
    Container,
    ISCSIVolumeSource,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from trio_kubelet.kernel.mountinfo import mount_points, mounts_at_or_below
from trio_kubelet.kernel.scsi_disks import SCSIDisks
from trio_kubelet.references import NoReferences
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import Journal
from trio_kubelet.volumes import (
    DiskStages,
    NodeOfVolumes,
    PodFolders,
    StagedVolumes,
    VolumeOperations,
    disk_file_systems,
    local_volumes,
    names_in_use,
    staged_volumes,
)
from trio_kubelet.volumes.disks import AttachedDisk, KnownDisks
from trio_kubelet.volumes.iscsi import ISCSIDisks
from trio_kubelet.volumes.iscsi_database import ISCSIDatabase
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.plugin import VolumesNotReady
from trio_kubelet.volumes.resolved import resolve_own
from trio_kubelet.volumes.volumes import Volumes

PORTAL = "127.0.0.1:3260"
UNIQUE = f"kubernetes.io/iscsi/{PORTAL}:{TARGET}:1"
SOURCE = ISCSIVolumeSource(target_portal=PORTAL, iqn=TARGET, lun=1, iscsi_interface="default")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def a_pod(uid: str, **source: object) -> Pod:
    mount = VolumeMount(name="v", mount_path="/v")
    volume = Volume(name="v", iscsi=evolve(SOURCE, **source))  # type: ignore[arg-type]
    spec = PodSpec(containers=(Container(name="c", volume_mounts=(mount,)),), volumes=(volume,))
    return Pod(metadata=ObjectMeta(name="p", namespace="n", uid=uid), spec=spec)


@define(eq=False)
class Machine:
    """A machine with the tools for disks, and an agent that may be started again."""

    folder: Path
    attaches: bool = False
    node: Node | None = None
    staged: StagedVolumes = field(init=False)

    def __attrs_post_init__(self) -> None:
        for each in ("bin", "sys", "dev", "kubelet", "recorded/block/sda/device"):
            (self.folder / each).mkdir(parents=True)
        recorded_session(self.folder / "recorded")
        (self.folder / "recorded/block/sda/device/delete").touch()
        (self.folder / "dev/sda").touch()
        shows = f"cp -a {self.folder}/recorded/. {self.folder}/sys/"
        hides = f"rm -r {self.folder}/sys/class/iscsi_session/session1 || exit 21"
        self.install("iscsiadm", f'case "$*" in *--login) {shows};; *--logout) {hides};; esac')
        self.install("blkid", "exit 2")
        for name in ("mkfs.ext4", "fsck"):
            self.install(name, "exit 0")
        self.install("mount", 'for last; do :; done; exec /bin/mount -t tmpfs none "$last"')

    def install(self, name: str, script: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{self.folder}/told\n{script}\n')
        program.chmod(0o755)

    def told(self) -> list[str]:
        """The runs of programs so far, without what is the same in all."""
        told = self.folder / "told"
        text = told.read_text() if told.exists() else ""
        return text.replace(f" -p {PORTAL} -T {TARGET} -I default", "").splitlines()

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Volumes]:
        folders = PodFolders(self.folder / "kubelet")
        journal, objects = Journal(TrioClock()), NoReferences()
        self.staged = StagedVolumes(folders.root, journal, lambda: self.node, VolumeOperations())
        disks = SCSIDisks(sys=self.folder / "sys", dev=self.folder / "dev")
        kind = ISCSIDisks(objects, disks, ISCSIDatabase((self.folder / "iscsi",)))
        stages = DiskStages(folders, self.staged, {"iscsi": kind}, attaches=self.attaches)
        node = NodeOfVolumes(disks=stages)
        volumes = local_volumes(folders, lambda pod: 1 << 20, node=node, privileged=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.staged.run)
            yield volumes
            nursery.cancel_scope.cancel()

    async def until_unused(self) -> None:
        with trio.fail_after(60):
            while list(self.folder.glob("kubelet/disks/*.json")):
                await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    yield machine
    for each in mounts_at_or_below((tmp_path / "kubelet").resolve(), mount_points()):
        unmount(each.path)


@needs_root
async def test_a_disk_is_attached_for_the_first_pod_and_detached_after_the_last(
    machine: Machine,
) -> None:
    async with machine.agent() as volumes:
        for uid in ("a", "b"):
            await volumes.prepare(a_pod(uid))
        attached = machine.told()
        assert [each for each in attached if each.endswith("--login")] == [
            "iscsiadm -m node --login"
        ]
        place = machine.folder / "kubelet/plugins/kubernetes.io/iscsi/iface-default"
        assert attached[-2:] == [
            f"mkfs.ext4 -F -m0 {machine.folder}/dev/sda",
            f"mount -t ext4 -o rw,defaults {machine.folder}/dev/sda "
            f"{place}/{PORTAL}-{TARGET}-lun-1",
        ]
        await volumes.tear_down("a")
        assert machine.told() == attached
        await volumes.tear_down("b")
        await machine.until_unused()
        assert machine.told()[len(attached) :] == [
            "iscsiadm -m node --logout",
            "iscsiadm -m node -o delete",
        ]
        assert (machine.folder / "sys/block/sda/device/delete").read_text() == "1"
        assert not place.exists()


@needs_root
async def test_a_disk_that_the_node_has_no_room_to_name_is_not_attached_and_not_recorded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_in_use, "MOST_BYTES_OF_NAMESPACE", 10)
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady, match="may not be more than 10 bytes together"):
            await volumes.prepare(a_pod("a"))
        assert machine.staged.in_use() == ()
    async with machine.agent():
        assert machine.staged.in_use() == ()
    assert machine.told() == []


@needs_root
async def test_the_next_agent_knows_the_disk_and_its_users(machine: Machine) -> None:
    async with machine.agent() as volumes:
        await volumes.prepare(a_pod("a"))
    before = machine.told()
    async with machine.agent() as volumes:
        await volumes.prepare(a_pod("a"))
        assert machine.told() == before
    async with machine.agent() as volumes:
        assert machine.staged.in_use() == (UNIQUE,)
        await volumes.remove_pod("a")
        await machine.until_unused()
    assert machine.told()[-1] == "iscsiadm -m node -o delete"


@needs_root
async def test_a_session_that_was_there_before_stays(machine: Machine) -> None:
    (machine.folder / "sys").rmdir()
    (machine.folder / "recorded").rename(machine.folder / "sys")
    async with machine.agent() as volumes:
        await volumes.prepare(a_pod("a"))
        await volumes.tear_down("a")
        await machine.until_unused()
    assert [each for each in machine.told() if each.startswith("iscsiadm")] == []


async def test_a_node_without_the_tools_says_which_is_missing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(disk_file_systems, "_FOLDERS_OF_TOOLS", "/nowhere")
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady) as caught:
            await volumes.prepare(a_pod("a"))
        assert caught.value.failures == [
            (
                "FailedMount",
                'MountVolume.WaitForAttach failed for volume "v" : iscsi: portal '
                f"{PORTAL}: iscsiadm is not installed on this node",
            )
        ]
        await volumes.tear_down("a")


async def test_a_secret_that_is_not_named_is_told(machine: Machine) -> None:
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady, match=r"iscsi.secretRef must name a secret for CHAP"):
            await volumes.prepare(a_pod("a", chap_auth_session=True))
        await volumes.tear_down("a")


async def test_a_disk_waits_for_the_controller_where_there_is_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_volumes, "ATTACHED_SECONDS", 0.1)
    machine.attaches = True
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady, match=r"unattached volumes=\[v\]"):
            await volumes.prepare(a_pod("a"))
        assert machine.staged.in_use() == (UNIQUE,)
        assert machine.told() == []
        attached = (AttachedVolume(name=UNIQUE),)
        machine.node = Node(status=NodeStatus(volumes_in_use=(UNIQUE,), volumes_attached=attached))
        machine.install("iscsiadm", "echo no; exit 5")
        monkeypatch.setattr(staged_volumes, "ATTACHED_SECONDS", 60)
        machine.staged.node_changed()
        with pytest.raises(VolumesNotReady, match=r"iscsiadm .* failed: exit status 5: no"):
            await volumes.prepare(a_pod("a"))
        await volumes.tear_down("a")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"portals": ("a",) * 17}, "iscsi.portals: Too many: 17: must have at most 16 items"),
        ({"portals": ("a" * 254,)}, "iscsi.portals: Too long: may not be more than 253 bytes"),
        ({"target_portal": "a" * 254}, "iscsi.targetPortal: Too long: .* more than 253 bytes"),
        ({"iqn": "iqn." + "ä" * 110}, "iscsi.iqn: Too long: may not be more than 223 bytes"),
        ({"initiator_name": "i" * 224}, "iscsi.initiatorName: Too long: .* more than 223 bytes"),
        ({"iscsi_interface": "i" * 254}, "iscsi.iscsiInterface: Too long: .* than 253 bytes"),
        ({"fs_type": "../evil"}, "fsType: Invalid value: '../evil'"),
        ({"fs_type": "x" * 33}, "fsType: Invalid value"),
    ],
)
async def test_a_source_that_has_too_much_is_refused_before_anything_is_made(
    machine: Machine, source: dict[str, object], said: str
) -> None:
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady, match=said):
            await volumes.prepare(a_pod("a", **source))
        await volumes.tear_down("a")
    assert machine.told() == []
    assert list(machine.folder.glob("kubelet/disks/*")) == []


async def test_of_many_portals_that_fail_a_few_are_told(machine: Machine) -> None:
    machine.install("iscsiadm", "exit 5")
    portals = tuple(f"10.0.0.{number}" for number in range(16))
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady, match=r"portal 10.0.0.1:.*; 14 more failed") as caught:
            await volumes.prepare(a_pod("a", portals=portals))
        assert "10.0.0.2:" not in str(caught.value)
        await volumes.tear_down("a")


async def test_a_name_that_leads_elsewhere_is_refused(machine: Machine) -> None:
    async with machine.agent() as volumes:
        with pytest.raises(VolumesNotReady, match="cannot name a folder"):
            await volumes.prepare(a_pod("a", iqn="iqn.x/../../.."))
        await volumes.tear_down("a")
    assert machine.told() == []


@needs_root
async def test_the_next_disk_of_a_target_is_staged_without_the_records_of_others(
    machine: Machine,
) -> None:
    async with machine.agent() as volumes:
        await volumes.prepare(a_pod("a"))
        (first,) = machine.folder.glob("kubelet/disks/*.json")
        known = first.read_bytes()
        first.write_text("not read")
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(a_pod("b", lun=7))
        (second,) = set(machine.folder.glob("kubelet/disks/*.json")) - {first}
        assert orjson.loads(second.read_bytes())["source"]["foundPortals"] == []
        first.write_bytes(known)
        for uid in ("a", "b"):
            await volumes.tear_down(uid)
        await machine.until_unused()
    assert machine.told()[-1] == "iscsiadm -m node -o delete"


@pytest.mark.parametrize(
    ("other", "is_removed", "is_ended"),
    [
        ({"lun": 1, "portals": ("10.0.0.1",)}, False, False),
        ({"lun": 1, "target_portal": "10.0.0.1"}, True, True),
        ({"lun": 1, "iscsi_interface": "fast"}, True, True),
        ({"lun": 2}, True, False),
        ({"lun": 3}, True, True),
    ],
)
async def test_a_session_ends_unless_another_disk_is_reached_by_it(
    machine: Machine, other: dict[str, object], is_removed: bool, is_ended: bool
) -> None:
    session = recorded_session(machine.folder / "elsewhere")
    (machine.folder / "sys").rmdir()
    (machine.folder / "recorded").rename(machine.folder / "sys")
    beside = machine.folder / "sys" / session.relative_to(machine.folder / "elsewhere")
    (beside / "target2:0:0/2:0:0:2/block/sdb").mkdir(parents=True)
    disks = SCSIDisks(sys=machine.folder / "sys", dev=machine.folder / "dev")
    kind = ISCSIDisks(NoReferences(), disks)

    def disk(**source: object) -> AttachedDisk:
        pod = a_pod("a", **source)
        return kind.disk(resolve_own(pod.spec.volumes[0]))

    await kind.detach(disk(), lambda: [disk(**other)], FairLimiter(1, 1).share(""))
    delete = machine.folder / "sys/block/sda/device/delete"
    assert (delete.read_text() == "1") is is_removed
    assert ("iscsiadm -m node --logout" in machine.told()) is is_ended


@needs_root
async def test_a_portal_that_does_not_answer_holds_up_nobody_else_of_its_target(
    machine: Machine,
) -> None:
    hanging = machine.folder / "hanging"
    script = (machine.folder / "bin/iscsiadm").read_text().split("\n", 2)[2]
    waits = f'case "$*" in *-p\\ 10.0.0.9*--discover) touch {hanging}; exec sleep 1000;; esac'
    machine.install("iscsiadm", f"{waits}\n{script}")
    async with machine.agent() as volumes, trio.open_nursery() as nursery:
        nursery.start_soon(volumes.prepare, a_pod("a", target_portal="10.0.0.9"))
        with trio.fail_after(60):
            while not hanging.exists():
                await trio.testing.wait_all_tasks_blocked(0.01)
            await volumes.prepare(a_pod("b"))
            await volumes.tear_down("b")
            while "iscsiadm -m node --logout" not in machine.told():
                await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()


def test_disks_have_to_do_with_those_of_their_target_alone() -> None:
    known = KnownDisks()
    one, of_same_target, other = (
        AttachedDisk(
            plugin="kubernetes.io/iscsi",
            name=name,
            is_block=False,
            folder=(name,),
            volume="v",
            source={"target": target},
        )
        for name, target in (("a", TARGET), ("b", TARGET), ("c", "iqn.other"))
    )
    for each in (one, of_same_target, other):
        known.add(each)
    assert known.others(one) == [of_same_target]
    assert known.others(other) == []
    known.remove(of_same_target)
    assert known.others(one) == []
