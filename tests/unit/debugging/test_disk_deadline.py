"""The report on the disk, when something that it asks hangs or fails."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from trio_kubelet.debugging import disk
from trio_kubelet.debugging.deleted_files import DeletedFile, DeletedFiles
from trio_kubelet.debugging.disk import DEADLINE_SECONDS, DiskReport
from trio_kubelet.errors import CollectionError
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.runtime.images.collector import ImageCollector, ImageUsage
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.server import AnswerWriters
from trio_kubelet.server.messages import Request
from trio_kubelet.stats import Filesystem, PodStats, Stats, StatsProvider, Usage
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.stats.values import VolumeStats

ID = "ab" * 32
POD = ObservedPod(
    uid="u",
    name="p",
    namespace="ns",
    observed_at=0.0,
    containers=(ObservedContainer(id=ID, name="c", sandbox_id="s", state=ObservedState.EXITED),),
)
HANGING = f"not found out within {DEADLINE_SECONDS:.0f} s"


@define
class Node:
    """The parts that a report asks, of which those named hang."""

    hanging: frozenset[str] = frozenset()
    problem: str = ""
    problems: Mapping[str, str] = field(factory=dict)

    async def _reach(self, part: str) -> None:
        if part in self.hanging:
            await trio.sleep_forever()

    async def usage(self) -> Sequence[ImageUsage]:
        await self._reach("images")
        if self.problem:
            raise CollectionError(self.problem)
        return ()

    async def full(self) -> Stats:
        await self._reach("pods")
        usage = Usage(time_ns=0)
        stats = PodStats(
            uid="u",
            namespace="ns",
            name="p",
            started_at_ns=0,
            usage=usage,
            containers=(),
            layers=Filesystem(time_ns=0, used=7),
        )
        return cast("Stats", _Told(pods=(stats,), problems=self.problems))

    async def disks(self) -> Mapping[str, PodDisk]:
        await self._reach("files")
        volume = VolumeStats(name="v", filesystem=Filesystem(time_ns=0, used=5), ephemeral=True)
        return {"u": PodDisk(logs={"c": Filesystem(time_ns=0, used=3)}, volumes=(volume,))}

    async def thread(self, _work: object, **options: Any) -> DeletedFiles:
        """In the place of the thread that searches for files."""
        assert options["abandon_on_cancel"]
        await self._reach("deletedFiles")
        file = DeletedFile(container_id=ID, pid=1, command="c", path="/f", used_bytes=9)
        return DeletedFiles(files=(file,), complete=True)


@define
class _Told:
    pods: Sequence[PodStats]
    problems: Mapping[str, str]


async def answered(node: Node, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """The report of a node, which comes within its time."""
    monkeypatch.setattr(disk, "run_in_thread", node.thread)
    empty_dir = {"metadata": {"uid": "u"}, "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    report = DiskReport(
        stats=cast("StatsProvider", node),
        images=cast("ImageCollector", node),
        pods=lambda: [decode(Pod, empty_dir)],
        observed=lambda: [POD],
        writers=AnswerWriters(),
    )
    began = trio.current_time()
    response = await report.answer(cast("Request", None))
    assert trio.current_time() - began <= DEADLINE_SECONDS
    assert isinstance(response.body, bytes)
    return cast("Mapping[str, Any]", json.loads(response.body))


PARTS = ("images", "pods", "files", "deletedFiles")


@pytest.mark.parametrize("hanging", [*([part] for part in PARTS), PARTS, ()], ids=str)
async def test_what_hangs_is_named_and_the_rest_is_told(
    hanging: Sequence[str], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = await answered(Node(hanging=frozenset(hanging)), monkeypatch)
    assert report["problems"] == dict.fromkeys(hanging, HANGING)
    (pod,) = report["pods"]
    assert pod["writableLayerBytes"] == (None if "pods" in hanging else 7)
    assert pod["logBytes"] == (None if "files" in hanging else 3)
    assert pod["emptyDirBytes"] == (None if "files" in hanging else 5)
    deleted = [each["path"] for each in report["deletedFiles"]]
    assert deleted == ([] if "deletedFiles" in hanging else ["/f"])
    assert [each["container"] for each in report["deadContainers"]] == ["c"]


async def test_what_fails_is_named_with_its_words(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(problem="it is away", problems={"runtime": "it says nothing"})
    report = await answered(node, monkeypatch)
    assert report["problems"] == {"images": "it is away", "runtime": "it says nothing"}
