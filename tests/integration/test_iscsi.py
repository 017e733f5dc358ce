# ruff: noqa: ASYNC240 - the tests look at the disk themselves
"""Disks of a real iSCSI target, by the real iscsiadm: shared by pods, given back after the last.

The kernel must have both ends of iSCSI (`tests/guest` runs this on a machine that does).
"""

import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from lab import UnavailableError
from lab.iscsi_target import ISCSITarget, load_modules
from tests.integration.disk_node import DiskNode
from tests.unit.references.cluster import open_cluster
from tests.unit.volumes.persistent import claim, claiming_pod, persistent
from trio_kubelet.k8s import (
    ISCSIPersistentVolumeSource,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    Secret,
    SecretReference,
)
from trio_kubelet.k8s.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SECRETS
from trio_kubelet.kernel.scsi_disks import SCSIDisks
from trio_kubelet.volumes import (
    PodFolders,
)
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.plugin import VolumesNotReady

pytestmark = pytest.mark.integration

NAME = "iqn.2026-11.lab:disks"
PORTAL, OTHER_PORTAL, DEAD_PORTAL = "127.0.0.1:3260", "127.0.0.2:3260", "127.0.0.3:3260"
PASSWORD = "a-secret-of-16-ch"


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    try:
        load_modules()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    if shutil.which("iscsiadm", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("iscsiadm is not installed")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arguments of each run of iscsiadm, a line for each."""
    program, told = tmp_path / "bin/iscsiadm", tmp_path / "told"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{told}\nexec /usr/sbin/iscsiadm "$@"\n')
    program.chmod(0o755)
    told.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return told


class Node(DiskNode):
    """A node that may have the disks of the target."""

    def bind(self, *, mode: str = "Filesystem", lun: int = 0, **source: object) -> None:
        """Have the claim `data` bound to a LUN of the target."""
        uid = self.cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim()).metadata.uid
        made = persistent(bound_to=uid, mode=mode, access=("ReadWriteMany",))
        wanted = ISCSIPersistentVolumeSource(
            **{"target_portal": PORTAL, "iqn": NAME, "lun": lun} | source  # type: ignore[arg-type]
        )
        spec = evolve(made.spec, host_path=None, iscsi=wanted)
        self.cluster.server.create(PERSISTENT_VOLUMES, evolve(made, spec=spec))

    async def until_nothing_is_left(self) -> None:
        """Wait until the node has neither session nor disk nor record of the target."""
        with trio.fail_after(120):
            while self.records() or sessions():
                await trio.testing.wait_all_tasks_blocked(0.05)
        assert self.mounts() == ()
        assert not (self.folders.root / "plugins/kubernetes.io/iscsi/iface-default").exists()


def sessions() -> list[str]:
    """The portals of the sessions with the target."""
    found = SCSIDisks().sessions()
    return sorted(f"{each.address}:{each.port}" for each in found if each.target == NAME)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    (tmp_path / "kubelet").mkdir()
    async with open_cluster() as cluster:
        node = Node(PodFolders(tmp_path / "kubelet"), cluster)
        yield node
    for each in node.mounts():
        unmount(each.path)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ISCSITarget]:
    with ISCSITarget(tmp_path / "disks", NAME, portals=(PORTAL, OTHER_PORTAL), luns=2) as target:
        yield target


def in_group(pod: Pod, group: int) -> Pod:
    return evolve(pod, spec=evolve(pod.spec, security_context=PodSecurityContext(fs_group=group)))


async def test_pods_share_a_disk_that_goes_after_the_last_and_keeps_its_data(
    node: Node, target: ISCSITarget
) -> None:
    node.bind()
    async with node.agent() as volumes:
        first = Path((await volumes.prepare(in_group(claiming_pod("a"), 1234)))["files"].host_path)
        assert first.stat().st_gid == 1234
        (first / "data").write_text("kept")
        second = await volumes.prepare(claiming_pod("b", read_only=True))
        assert Path(second["files"].host_path, "data").read_text() == "kept"
        assert Path(second["files"].host_path).stat().st_dev == first.stat().st_dev
        assert sessions() == [PORTAL]
        await volumes.tear_down("a")
        assert Path(second["files"].host_path, "data").read_text() == "kept"
        await volumes.tear_down("b")
        await node.until_nothing_is_left()
        again = await volumes.prepare(claiming_pod("c"))
        assert Path(again["files"].host_path, "data").read_text() == "kept"
        await volumes.remove_pod("c")
        await node.until_nothing_is_left()
    assert target.file(0).stat().st_blocks > 0


@pytest.mark.usefixtures("target")
async def test_an_agent_that_starts_mounts_nothing_again_and_detaches_what_nobody_uses(
    node: Node, told: Path
) -> None:
    node.bind()
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
    before, runs = node.mounts(), told.read_text()
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
        assert (node.mounts(), told.read_text()) == (before, runs)
    async with node.agent() as volumes:
        await volumes.remove_pod("a")
        await node.until_nothing_is_left()


@pytest.mark.usefixtures("target")
async def test_a_stage_whose_pod_is_gone_is_undone_by_the_next_agent(node: Node) -> None:
    node.bind()
    async with node.agent() as volumes:
        mounted = await volumes.prepare(claiming_pod("a"))
    unmount(Path(mounted["files"].host_path))
    shutil.rmtree(node.folders.pod("a"))
    async with node.agent():
        await node.until_nothing_is_left()


async def test_a_password_comes_from_a_secret_and_is_in_no_arguments(
    node: Node, told: Path, tmp_path: Path
) -> None:
    data = {
        f"{prefix}.{part}": value.encode()
        for prefix in ("node.session.auth", "discovery.sendtargets.auth")
        for part, value in (("username", "lab"), ("password", PASSWORD))
    }
    secret = Secret(
        metadata=ObjectMeta(name="chap", namespace="storage"),
        type="kubernetes.io/iscsi-chap",
        data=data,
    )
    node.cluster.server.create(SECRETS, secret)
    reference = SecretReference(name="chap", namespace="storage")
    node.bind(chap_auth_session=True, chap_auth_discovery=True, secret_ref=reference)
    chap = {"userid": "lab", "password": PASSWORD}
    with ISCSITarget(
        tmp_path / "disks", NAME, portals=(PORTAL,), chap=chap, chap_for_discovery=True
    ):
        async with node.agent() as volumes:
            await volumes.prepare(claiming_pod("a"))
            assert sessions() == [PORTAL]
            records = [
                each
                for each in Path("/var/lib/iscsi").rglob("*")
                if each.is_file() and PASSWORD in each.read_text()
            ]
            assert records
            assert {stat.S_IMODE(each.stat().st_mode) for each in records} == {0o600}
            assert "--login" in told.read_text()
            assert PASSWORD not in told.read_text()
            await volumes.remove_pod("a")
            await node.until_nothing_is_left()


async def test_who_does_not_know_the_password_is_told_so(node: Node, tmp_path: Path) -> None:
    node.bind()
    chap = {"userid": "lab", "password": PASSWORD}
    with ISCSITarget(tmp_path / "disks", NAME, portals=(PORTAL,), chap=chap):
        async with node.agent() as volumes:
            words = 'MountVolume.WaitForAttach failed for volume "pv-data" : iscsi: portal 127.0.0'
            with pytest.raises(VolumesNotReady, match=words):
                await volumes.prepare(claiming_pod("a"))
            await volumes.remove_pod("a")
            await node.until_nothing_is_left()


@pytest.mark.usefixtures("target")
async def test_all_portals_are_used_and_one_that_is_dead_is_done_without(node: Node) -> None:
    node.bind(portals=(DEAD_PORTAL, OTHER_PORTAL))
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
        assert sessions() == [PORTAL, OTHER_PORTAL]
        await volumes.remove_pod("a")
        await node.until_nothing_is_left()


@pytest.mark.usefixtures("target")
async def test_a_volume_may_have_an_initiator_name_of_its_own(node: Node) -> None:
    initiator = "iqn.2026-11.lab:own"
    node.bind(initiator_name=initiator)
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
        (session,) = SCSIDisks().sessions()
        assert session.interface == f"{PORTAL}:pv-data"
        shown = Path("/sys/class/iscsi_session", session.folder.name, "initiatorname")
        assert shown.read_text().strip() == initiator
        await volumes.remove_pod("a")
        await node.until_nothing_is_left()
        assert not list(Path("/var/lib/iscsi/ifaces").glob("*pv-data"))


async def test_a_disk_may_be_a_device_of_its_pods(node: Node, target: ISCSITarget) -> None:
    node.bind(mode="Block", lun=1)
    async with node.agent() as volumes:
        for uid in ("a", "b"):
            mounted = await volumes.prepare(claiming_pod(uid, as_device=True))
        device = Path(mounted["files"].device)
        assert stat.S_ISBLK(device.stat().st_mode)
        opened = os.open(device, os.O_WRONLY | os.O_SYNC)
        os.write(opened, b"written by a pod")
        os.close(opened)
        await volumes.tear_down("a")
        assert sessions() == [PORTAL]
        await volumes.tear_down("b")
        await node.until_nothing_is_left()
    assert target.file(1).read_bytes().startswith(b"written by a pod")


@pytest.mark.usefixtures("target")
async def test_a_session_that_was_there_before_stays(node: Node) -> None:
    where = ("-p", PORTAL, "-I", "default")
    discovery = ("iscsiadm", "-m", "discovery", "-t", "sendtargets", *where)
    login = ("iscsiadm", "-m", "node", *where, "-T", NAME)
    await trio.run_process(discovery, capture_stdout=True)
    await trio.run_process((*login, "--login"), capture_stdout=True)
    node.bind()
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
        await volumes.remove_pod("a")
        with trio.fail_after(60):
            while node.records():
                await trio.testing.wait_all_tasks_blocked(0.05)
    assert sessions() == [PORTAL]
    await trio.run_process((*login, "--logout"), capture_stdout=True)


@pytest.mark.usefixtures("target")
async def test_a_disk_without_a_file_system_is_not_mounted_read_only(node: Node) -> None:
    node.bind(read_only=True)
    async with node.agent() as volumes:
        with pytest.raises(VolumesNotReady, match="cannot mount unformatted disk"):
            await volumes.prepare(claiming_pod("a"))
        await volumes.remove_pod("a")
        await node.until_nothing_is_left()
