"""What a pod's containers are made with, from the volumes and references of the node."""

from pathlib import Path

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.node_facts import node_facts
from tests.trio_clock import TrioClock
from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.references.pods import pod_with
from tests.unit.references.test_volumes_of_running_pods import mounting
from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import Pod
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.volumes import PodFolders, PodStorage, local_volumes


class Storage:
    """The storage of one node, and the events that it records."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        volumes = local_volumes(
            PodFolders(root),
            lambda pod: 1 << 20,
            data=cluster.references,
            clock=TrioClock(),
            privileged=False,
        )
        recorder = EventRecorder(Journal(TrioClock()), "node")
        self.events: list[RecordedEvent] = []
        recorder.on_event.add(self.events.append)
        self.pods = PodStorage(
            volumes,
            cluster.references,
            recorder,
            node_facts(root),
            FairLimiter(1, 1),
        )

    def said(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.events]


async def test_a_pod_that_runs_goes_on_when_its_config_map_vanishes_and_says_so(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        storage, pod = Storage(cluster, tmp_path), running_pod()
        volume = (await storage.pods.prepare(pod)).volumes["cm"]
        assert storage.said() == []
        await wait_all_tasks_blocked()
        cluster.delete_map("settings")
        await cluster.told.wait()
        assert (await storage.pods.prepare(pod)).volumes["cm"] == volume
        assert (Path(volume.host_path) / "a").read_text() == "1"
        words = 'MountVolume.SetUp failed for volume "cm" : configmap "settings" not found'
        assert storage.said() == [("FailedMount", words)]


async def test_a_pod_whose_folders_cannot_be_made_is_told_as_by_the_go_kubelet(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        (tmp_path / "pods").write_text("not a folder")
        with pytest.raises(PreparationError, match="error making pod data directories") as caught:
            await Storage(cluster, tmp_path).pods.prepare(running_pod())
        assert caught.value.reason == "Failed"


async def test_a_pod_that_never_had_its_config_map_waits_for_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        storage, pod = Storage(cluster, tmp_path), running_pod()
        with pytest.raises(PreparationError, match='configmap "settings" not found'):
            await storage.pods.prepare(pod)
        await wait_all_tasks_blocked()
        cluster.put_map("settings", a="1")
        assert await cluster.told.wait() == ["u1"]
        assert "cm" in (await storage.pods.prepare(pod)).volumes


async def test_nothing_is_followed_any_more_when_the_volumes_are_gone(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        storage, pod = Storage(cluster, tmp_path), running_pod()
        await storage.pods.prepare(pod)
        await wait_all_tasks_blocked()
        assert cluster.watched() == 1
        await storage.pods.unmount(pod)
        await wait_all_tasks_blocked()
        assert cluster.watched() == 0


async def test_pull_secrets_that_are_missing_are_told_whether_they_are_needed_or_not(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        cluster.put_secret("there", key=b"k")
        storage = Storage(cluster, tmp_path)
        await storage.pods.prepare(pod_with("u1", pull_secrets=("one", "there", "two")))
        words = (
            "Unable to retrieve some image pull secrets (one, two); attempting to pull the image "
            "may not succeed."
        )
        assert storage.said() == [("FailedToRetrieveImagePullSecret", words)]


def running_pod() -> Pod:
    return mounting(pod_with("u1", config_map="settings"))
