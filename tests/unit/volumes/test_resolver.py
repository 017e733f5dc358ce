"""Claims of pods become the volumes that are mounted, with the Go kubelet's checks and words."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from attrs import evolve, frozen
from trio.testing import MockClock

from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.volumes.persistent import NAMESPACE, claim, claiming_pod, persistent
from trio_kubelet.k8s import Node, ObjectMeta, PersistentVolume, PersistentVolumeClaim, Pod
from trio_kubelet.k8s.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from trio_kubelet.volumes import NodeOfVolumes, PodFolders, local_volumes
from trio_kubelet.volumes.plugin import MountedVolume, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

HERE = Node(metadata=ObjectMeta(name="here", labels={"zone": "a"}))


@frozen
class Setting:
    """A server with a claim and a volume, and the volumes of one node."""

    cluster: Cluster
    volumes: Volumes

    def put(self, *objects: PersistentVolumeClaim | PersistentVolume) -> None:
        """Create objects; a claim keeps its UID, which the server would give it."""
        for each in objects:
            if isinstance(each, PersistentVolumeClaim):
                made = self.cluster.server.create(PERSISTENT_VOLUME_CLAIMS, each)
                assert made.metadata.uid
            else:
                self.cluster.server.create(PERSISTENT_VOLUMES, each)

    def bind(self, **options: object) -> None:
        """Create a claim `data`, and a volume that is bound to it, made with these options."""
        made = self.cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim())
        found = persistent(**{"bound_to": made.metadata.uid, **options})  # type: ignore[arg-type]
        self.cluster.server.create(PERSISTENT_VOLUMES, found)

    async def problem(self, pod: Pod) -> str:
        """Why the pod's volumes cannot be mounted."""
        with pytest.raises(VolumesNotReady) as caught:
            await self.volumes.prepare(pod)
        return str(caught.value)

    async def mounted(self, pod: Pod) -> MountedVolume:
        """The pod's volume `files`."""
        return (await self.volumes.prepare(pod))["files"]


def setting(cluster: Cluster, root: Path, node: Callable[[], Node | None] | None = None) -> Setting:
    volumes = local_volumes(
        PodFolders(root),
        lambda pod: 1 << 20,
        data=cluster.references,
        node=NodeOfVolumes(object=node or (lambda: HERE)),
        privileged=False,
    )
    return Setting(cluster, volumes)


def summary(why: str) -> str:
    return (
        "Unable to attach or mount volumes: unmounted volumes=[files], unattached volumes=[], "
        f"failed to process volumes=[files]: {why}"
    )


async def test_a_pod_mounts_the_host_path_that_its_claim_is_bound_to(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.bind(path=str(tmp_path), zone="a")
        assert await here.mounted(claiming_pod()) == MountedVolume(
            name="files", host_path=str(tmp_path)
        )
        assert (await here.mounted(claiming_pod("u2", read_only=True))).read_only


async def test_a_pod_waits_for_a_claim_that_is_not_there(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        words = 'failed to fetch PVC from API server: persistentvolumeclaims "data" not found'
        assert await setting(cluster, tmp_path).problem(claiming_pod()) == summary(
            f"error processing PVC shop/data: {words}"
        )


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (claim(phase="Pending"), "PVC is not bound"),
        (evolve(claim(), spec=evolve(claim().spec, volume_name="")), "PVC has empty pvc.Spec"),
        (claim(), "failed to fetch PV pv-data from API server: persistentvolumes"),
    ],
)
async def test_a_pod_waits_for_a_claim_that_gives_no_volume(
    autojump_clock: MockClock, tmp_path: Path, bad: PersistentVolumeClaim, why: str
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.put(bad)
        assert f"error processing PVC shop/data: {why}" in await here.problem(claiming_pod())


async def test_no_pod_starts_with_a_claim_that_is_being_deleted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        kept = evolve(claim().metadata, finalizers=("kubernetes.io/pvc-protection",))
        here.put(evolve(claim(), metadata=kept))
        cluster.server.delete(PERSISTENT_VOLUME_CLAIMS, "data", NAMESPACE)
        assert "PVC is being deleted" in await here.problem(claiming_pod())


async def test_a_pod_that_has_its_volume_goes_on_without_its_claim(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.bind()
        before = await here.mounted(claiming_pod())
        cluster.server.delete(PERSISTENT_VOLUME_CLAIMS, "data", NAMESPACE)
        assert await here.mounted(claiming_pod()) == before
        await here.volumes.tear_down("u1")
        assert "not found" in await here.problem(claiming_pod())


@pytest.mark.parametrize(
    ("bound_to", "why"),
    [
        (None, "it has a nil pv.Spec.ClaimRef"),
        ("other", "pv.Spec.ClaimRef.UID other does not point to claim.UID"),
    ],
)
async def test_a_volume_that_another_claim_has_is_not_mounted(
    autojump_clock: MockClock, tmp_path: Path, bound_to: str | None, why: str
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        found = persistent(bound_to=bound_to or "")
        if bound_to is None:
            found = evolve(found, spec=evolve(found.spec, claim_ref=None))
        here.put(claim(), found)
        assert why in await here.problem(claiming_pod())


async def test_a_device_is_not_mounted_and_a_folder_is_no_device(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.bind(mode="Block")
        words = "volume files has volumeMode Block, but is specified in volumeMounts"
        assert await here.problem(claiming_pod()) == summary(words)
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.bind()
        words = "volume files has volumeMode Filesystem, but is specified in volumeDevices"
        assert await here.problem(claiming_pod(as_device=True)) == summary(words)


async def test_an_ephemeral_volume_is_the_claim_that_was_made_for_its_pod(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here, pod = setting(cluster, tmp_path), claiming_pod("mine", ephemeral=True)
        made = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim("p-files", owner="mine"))
        here.put(persistent("p-files", bound_to=made.metadata.uid))
        assert (await here.mounted(pod)).host_path == "/"
        why = "PVC shop/p-files was not created for pod shop/p (pod is not owner)"
        assert await here.problem(claiming_pod("other", ephemeral=True)) == summary(why)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (HERE, "no matching NodeSelectorTerms"),
        (None, "the Node object, with the labels to compare, is not known yet"),
    ],
)
async def test_a_volume_of_other_nodes_is_not_mounted(
    autojump_clock: MockClock, tmp_path: Path, node: Node | None, why: str
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path, lambda: node)
        here.bind(zone="b")
        assert await here.problem(claiming_pod()) == (
            f'MountVolume.NodeAffinity check failed for volume "pv-data" : {why}'
        )


async def test_a_volume_for_one_pod_is_free_again_when_that_pod_is_gone(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.bind(access=("ReadWriteOncePod",))
        await here.mounted(claiming_pod("one"))
        assert await here.problem(claiming_pod("two")) == (
            'MountVolume.SetUp failed for volume "pv-data" : volume uses the ReadWriteOncePod '
            "access mode and is already in use by another pod"
        )
        await here.volumes.tear_down("one")
        await here.mounted(claiming_pod("two"))


async def test_a_claim_is_asked_for_again_by_back_off(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        asked: list[float] = []
        while trio.current_time() < 500:
            before = cluster.asked("get", "persistentvolumeclaims")
            assert "not found" in await here.problem(claiming_pod())
            if cluster.asked("get", "persistentvolumeclaims") > before:
                asked.append(trio.current_time())
            await trio.sleep(0.25)
        waits = [later - earlier for earlier, later in pairwise(asked)]
        assert waits == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122, 122]
        here.bind()
        await trio.sleep(122)
        await here.mounted(claiming_pod())


async def test_a_running_pod_costs_the_server_no_further_request(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        here = setting(cluster, tmp_path)
        here.bind()
        for _ in range(3):
            await here.mounted(claiming_pod())
        assert cluster.asked("get", "persistentvolumeclaims") == 1
        assert cluster.asked("get", "persistentvolumes") == 1
