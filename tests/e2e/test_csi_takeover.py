"""A node with volumes of a CSI driver changes hands between the agent and the Go kubelet.

The Go kubelet asks the driver again for what it finds, as it does at each of its own starts; the
agent does not. Nobody takes anything away that a pod uses.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve, frozen

from lab.agent import LabAgent
from lab.cluster_api import Json
from lab.csi_driver import CallLog, LabDriver
from lab.go_kubelet import GoKubelet
from lab.processes import wait_until
from tests.e2e.cluster import DEADLINE_SECONDS, Namespace, container, container_ids, until_term
from tests.e2e.local import AGENT, LocalCluster
from tests.e2e.test_csi import claim, described, driver
from trio_kubelet.kernel.loop_devices import loop_devices_on

STAGE, UNSTAGE = "NodeStageVolume", "NodeUnstageVolume"
PUBLISH, UNPUBLISH = "NodePublishVolume", "NodeUnpublishVolume"
CALLS = (STAGE, UNSTAGE, PUBLISH, UNPUBLISH)
REGISTERED = "NotifyRegistrationStatus"
VOLUMES = ("files", "device")


@frozen
class StorageNode:
    """The node, in whosever hands, with a driver whose files are in `folder`.

    Of the driver's calls those count whose volumes' names begin with `volumes`: the driver takes
    away what earlier tests have left, too.
    """

    cluster: LocalCluster
    folder: Path
    volumes: str = ""

    def hand_over(self, kind: type[LabAgent]) -> int:
        """Let another one have it, who has the driver and the pods when this returns.

        Returns the number of lines in the driver's log when nobody had the node.
        """
        self.cluster.agent.stop()
        lines = self._log()
        self.cluster.hand_over(kind)
        self.cluster.wait_node_ready()
        wait_until(
            lambda: REGISTERED in [line["method"] for line in self._log()[len(lines) :]],
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "the driver is not registered",
        )
        return len(lines)

    def asked(self, since: int) -> list[tuple[str, str]]:
        """The calls that the driver has begun to carry out since a line of its log: what, where."""
        return [
            (line["method"], line["target"])
            for line in self._log()[since:]
            if line["method"] in CALLS and line["step"] == "begun"
        ]

    def targets(self, method: str) -> list[str]:
        """The places that the driver was asked for in calls of a kind, in order."""
        done = (line for line in self._log() if line.get("step") == "done")
        return sorted(line["target"] for line in done if line["method"] == method)

    def wait_until_empty(self) -> None:
        """Wait until the driver has taken away what earlier tests have left, which it can now."""
        wait_until(
            lambda: not self.mounts(),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"mounts of others: {self.mounts()}",
        )

    def mounts(self) -> dict[str, str]:
        """The ids of the driver's mounts, and of what is bound of them, by their places."""
        root = str(self.cluster.agent.root)
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        found = {words[4]: words[0] for words in map(str.split, lines)}
        return {
            place: number
            for place, number in found.items()
            if place.startswith(root) and "kubernetes.io/csi/" in place.replace("~", "/")
        }

    def _log(self) -> list[Json]:
        lines = CallLog(self.folder / "calls.jsonl").read()
        return [line for line in lines if line.get("volume", self.volumes).startswith(self.volumes)]


@pytest.fixture
def node(local_cluster: LocalCluster, tmp_path: Path) -> Iterator[StorageNode]:
    """The node with a driver; in the end the agent has it, whoever had it."""
    try:
        with (
            described(local_cluster, attachRequired=False),
            driver(local_cluster, tmp_path, "n-9", "--stages"),
        ):
            try:
                node = StorageNode(local_cluster, tmp_path)
                node.wait_until_empty()
                yield node
            finally:
                if type(local_cluster.agent) is not AGENT:
                    local_cluster.hand_over(AGENT)
    finally:
        local_cluster.wait_node_ready()


def user(namespace: Namespace, name: str, begins: str) -> Json:
    """A pod that has one volume as a folder and another one as a device, when it runs."""
    main = until_term(
        "c",
        begins,
        volumeMounts=[{"name": "files", "mountPath": "/v"}],
        volumeDevices=[{"name": "device", "devicePath": "/dev/v"}],
    )
    claims = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in VOLUMES]
    return namespace.run(name, main, volumes=claims)


def delete(namespace: Namespace, name: str) -> None:
    namespace.api.delete(namespace.path("Pod", name))
    namespace.wait_gone(name)


@pytest.mark.skipif(AGENT is GoKubelet, reason="the agent has the node first")
def test_a_node_with_csi_volumes_changes_hands_both_ways(
    node: StorageNode, namespace: Namespace, go_kubelet: type[GoKubelet]
) -> None:
    node = evolve(node, volumes=namespace.name)
    claim(namespace, "files")
    claim(namespace, "device", "Block")
    first = user(namespace, "first", "echo kept >/v/f; echo kept | dd of=/dev/v conv=fsync")
    reads = "test $(cat /v/f) = kept && test $(head -c 4 /dev/v) = kept || exit 1"
    other = user(namespace, "other", reads)
    before, ours = container_ids([first, other]), node.mounts()

    node.hand_over(go_kubelet)
    second = user(namespace, "second", reads)
    assert node.mounts().items() >= ours.items(), "nothing is mounted anew"
    assert (node.targets(UNPUBLISH), node.targets(UNSTAGE)) == ([], [])
    assert container_ids([namespace.pod(name) for name in ("first", "other")]) == before
    delete(namespace, "other")
    wait_until(
        lambda: not [place for place in node.mounts() if other["metadata"]["uid"] in place],
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"volumes of {other['metadata']['uid']}: {node.mounts()}",
    )
    assert node.targets(UNSTAGE) == []

    theirs = node.mounts()
    since = node.hand_over(AGENT)
    third = user(namespace, "third", reads)
    published = node.asked(since)
    assert {what for what, _ in published} == {PUBLISH}, "nothing is asked for again"
    assert len(published) == len(VOLUMES)
    assert all(third["metadata"]["uid"] in place for _, place in published)
    assert node.mounts().items() >= theirs.items(), "nothing is mounted anew"
    for pod in (first, second):
        now = namespace.pod(pod["metadata"]["name"])
        assert container_ids([now]) == container_ids([pod])
        assert container(now)["restartCount"] == 0

    for name in ("first", "second", "third"):
        delete(namespace, name)
    lab_driver = LabDriver(node.folder)
    wait_until(
        lambda: not lab_driver.staged() and not node.mounts(),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"staged: {lab_driver.staged()}, mounts: {node.mounts()}",
    )
    assert node.targets(UNPUBLISH) == sorted(set(node.targets(PUBLISH))), "each is undone once"
    assert node.targets(UNSTAGE) == sorted(set(node.targets(STAGE)))
    assert [loop_devices_on(Path(place)) for place in theirs] == [()] * len(theirs)
