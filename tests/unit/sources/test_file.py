# ruff: noqa: ASYNC240 - the tests write the files themselves
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs

from tests.turns import making_test_data
from tests.unit.sources.manifest_texts import NODE, manifest, reader
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.inotify import Inotify
from trio_kubelet.sources import (
    ManifestContext,
    PodOperation,
    PodUpdates,
    Source,
    SourceMerge,
    watch_manifest_files,
)
from trio_kubelet.sources.manifest_watch import look
from trio_kubelet.sources.manifests import MAX_MANIFEST_BYTES, Manifest
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import EventRecorder, Journal

DEADLINE_SECONDS = 60
PODS = 6000


def no_queue_left(*_: object) -> None:
    """What opening a queue does when the user has as many as are allowed."""
    raise OSError(errno.EMFILE, "inotify_init1: Too many open files")


class Node:
    """A node with a folder of manifests; what its file source says, set by set."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "manifests"
        self.kept = root / "static-pods"
        self.journal = Journal(SystemClock())
        self.sets, self._receive = trio.open_memory_channel[tuple[Pod, ...]](100)
        self.adopted: dict[str, str] = {}

    @asynccontextmanager
    async def running(self, check_seconds: float = 1000.0) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, check_seconds)
            yield
            nursery.cancel_scope.cancel()

    def context(self) -> ManifestContext:
        return ManifestContext(
            node_name=NODE,
            kept_folder=self.kept,
            adopt=lambda: self._adopt,
            journal=self.journal,
        )

    async def _watch(self, check_seconds: float) -> None:
        await watch_manifest_files(
            self.folder, self.sets.send, self.context(), check_seconds=check_seconds
        )

    def _adopt(self, pod: Pod, source: Source) -> str | None:
        return self.adopted.get(pod.metadata.name)

    async def pods(self) -> tuple[Pod, ...]:
        """The next full set."""
        with trio.fail_after(DEADLINE_SECONDS):
            return await self._receive.receive()

    async def names(self) -> list[str]:
        return [pod.metadata.name.removesuffix(f"-{NODE}") for pod in await self.pods()]

    async def told(self, number: int = 1) -> list[tuple[str, str, str]]:
        """File, event and words of the first entries of the journal, once there are so many."""
        with trio.fail_after(DEADLINE_SECONDS):
            while len(entries := list(self.journal.entries())) < number:
                await trio.lowlevel.checkpoint()
        return [(Path(e.key).name, e.event, e.cause) for e in entries]

    async def kept_on_disk(self, number: int) -> None:
        """Wait until so many manifests are kept."""
        with trio.fail_after(DEADLINE_SECONDS):
            while len(list(self.kept.glob("*.json"))) != number:
                await trio.lowlevel.checkpoint()

    def write(self, name: str, text: str) -> None:
        """Write a manifest as careful people do: beside it, then move it there."""
        scratch = self.folder / f".{name}.new"
        scratch.write_text(text)
        scratch.rename(self.folder / name)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.folder.mkdir()
    return node


async def test_a_manifest_that_is_there_at_the_start_is_in_the_first_set(node: Node) -> None:
    node.write("web.yaml", manifest("web"))
    async with node.running():
        assert await node.names() == ["web"]


async def test_files_come_change_and_go(node: Node) -> None:
    async with node.running():
        assert await node.names() == []
        node.write("web.yaml", manifest("web"))
        (first,) = await node.pods()
        node.write("web.yaml", manifest("web", image="other"))
        (second,) = await node.pods()
        assert second.metadata.uid != first.metadata.uid
        assert second.spec.containers[0].image == "other"
        (node.folder / "web.yaml").unlink()
        assert await node.names() == []


async def test_a_file_written_in_place_counts_when_it_is_closed(node: Node) -> None:
    async with node.running():
        await node.pods()
        (node.folder / "web.yaml").write_text(manifest("web"))
        assert await node.names() == ["web"]
        text = manifest("other")
        with (node.folder / "web.yaml").open("w") as file:
            file.write(text[:20])
            file.flush()
            node.write("b.yaml", manifest("b"))
            assert await node.names() == ["b", "web"]
            file.write(text[20:])
        assert await node.names() == ["b", "other"]


async def test_which_files_count(node: Node) -> None:
    node.write("any.extension", manifest("any"))
    node.write("none", manifest("none"))
    (node.folder / ".hidden.yaml").write_text(manifest("hidden"))
    (node.folder / "sub").mkdir()
    (node.folder / "sub" / "pod.yaml").write_text(manifest("sub"))
    os.mkfifo(node.folder / "pipe")
    (node.folder / "link").symlink_to("sub/pod.yaml")
    (node.folder / "dangling").symlink_to("absent")
    async with node.running():
        assert await node.names() == ["any", "sub", "none"]


async def test_a_missing_folder_is_an_empty_set_until_it_comes(node: Node) -> None:
    node.folder.rmdir()
    async with node.running():
        assert await node.names() == []
        node.folder.mkdir()
        node.write("web.yaml", manifest("web"))
        assert await node.names() == ["web"]
        for file in node.folder.iterdir():
            file.unlink()
        assert await node.names() == []


async def test_a_folder_may_be_swapped_for_another(node: Node, tmp_path: Path) -> None:
    node.write("web.yaml", manifest("web"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.yaml").write_text(manifest("b"))
    async with node.running():
        assert await node.names() == ["web"]
        node.folder.rename(tmp_path / "away")
        assert await node.names() == []
        other.rename(node.folder)
        assert await node.names() == ["b"]
        node.write("c.yaml", manifest("c"))
        assert await node.names() == ["b", "c"]


async def test_a_single_file_may_be_watched(node: Node) -> None:
    node.folder.rmdir()
    async with node.running():
        assert await node.names() == []
        node.folder.write_text(manifest("one") + "---\n" + manifest("two"))
        assert await node.names() == ["one", "two"]
        node.folder.unlink()
        assert await node.names() == []


async def test_the_folder_is_looked_at_again_even_if_nothing_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.kernel.path_watch.PathWatch.arm", lambda self: None)
    async with node.running(check_seconds=0.01):
        assert await node.names() == []
        node.write("web.yaml", manifest("web"))
        assert await node.names() == ["web"]


async def test_without_a_queue_for_its_events_the_folder_is_looked_at_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inotify, "__init__", no_queue_left)
    async with node.running(check_seconds=0.01):
        assert await node.names() == []
        node.write("web.yaml", manifest("web"))
        assert await node.names() == ["web"]


async def test_a_bad_file_is_told_once_and_leaves_the_others_alone(node: Node) -> None:
    node.write("a.yaml", manifest("a"))
    node.write("bad.yaml", manifest("bad", image='""'))
    async with node.running():
        assert await node.names() == ["a"]
        expected = ("bad.yaml", "Rejected", "spec.containers[0].image: Required value")
        assert await node.told() == [expected]
        node.write("b.yaml", manifest("b"))
        assert await node.names() == ["a", "b"]
        node.write("bad.yaml", manifest("mended"))
        assert await node.names() == ["a", "b", "mended"]
        assert await node.told(2) == [expected, ("bad.yaml", "Mended", "")]


async def test_the_pod_of_a_file_that_became_bad_goes_on_over_a_restart(node: Node) -> None:
    node.write("web.yaml", manifest("web"))
    async with node.running():
        before = await node.pods()
        await node.kept_on_disk(1)
        node.write("web.yaml", "kind: [")
        await node.told()
    async with node.running():
        assert await node.pods() == before
        node.write("web.yaml", manifest("web", image="new"))
        (mended,) = await node.pods()
        assert mended.spec.containers[0].image == "new"
        node.write("web.yaml", "kind: [")
        (node.folder / "web.yaml").unlink()
        assert await node.names() == []
        await node.kept_on_disk(0)


@pytest.mark.parametrize("content", ["", " \n", "# nothing"])
async def test_an_emptied_file_does_not_stop_its_pod(node: Node, content: str) -> None:
    node.write("web.yaml", manifest("web"))
    async with node.running():
        await node.pods()
        (node.folder / "web.yaml").write_text(content)
        assert (await node.told())[0][2] == "there is no pod in it"
        node.write("b.yaml", manifest("b"))
        assert await node.names() == ["b", "web"]


async def test_a_pod_that_was_taken_over_keeps_its_uid_over_a_restart(node: Node) -> None:
    node.write("web.yaml", manifest("web"))
    node.adopted[f"web-{NODE}"] = "0123456789abcdef0123456789abcdef"
    async with node.running():
        (first,) = await node.pods()
        await node.kept_on_disk(1)
    node.adopted.clear()
    async with node.running():
        (second,) = await node.pods()
    assert first.metadata.uid == second.metadata.uid == "0123456789abcdef0123456789abcdef"


async def test_a_pod_that_another_kubelet_has_run_meanwhile_is_taken_over(node: Node) -> None:
    node.write("web.yaml", manifest("web"))
    async with node.running():
        await node.pods()
        await node.kept_on_disk(1)
    node.adopted[f"web-{NODE}"] = "0123456789abcdef0123456789abcdef"
    async with node.running():
        (again,) = await node.pods()
    assert again.metadata.uid == "0123456789abcdef0123456789abcdef"


async def test_a_file_that_is_too_large_is_refused(node: Node) -> None:
    node.write("big.yaml", manifest("big") + "#" * MAX_MANIFEST_BYTES)
    async with node.running():
        assert await node.names() == []
        assert await node.told() == [("big.yaml", "Rejected", "is larger than 10 MiB")]


async def test_of_two_files_with_one_pod_the_first_by_name_wins(node: Node) -> None:
    node.write("b.yaml", manifest("web", image="second"))
    async with node.running():
        await node.pods()
        node.write("a.yaml", manifest("web", image="first"))
        (pod,) = await node.pods()
        assert pod.spec.containers[0].image == "first"
        (told,) = await node.told()
        assert told[:2] == ("b.yaml", "Rejected")
        assert told[2].startswith('metadata.name: Duplicate value: "default/web-node-1"')


async def test_a_file_name_that_is_not_text_is_no_obstacle(node: Node) -> None:
    name = os.fsencode(node.folder) + b"/\xff.yaml"
    Path(os.fsdecode(name)).write_text(manifest("odd"))
    async with node.running():
        assert await node.names() == ["odd"]


async def test_a_folder_that_cannot_be_read_stops_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write("web.yaml", manifest("web"))
    async with node.running():
        before = await node.pods()
        await node.kept_on_disk(1)

    def fails(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "iterdir", fails)
        async with node.running():
            assert await node.pods() == before
            told = ("manifests", "Rejected", "cannot be read: Input/output error")
            assert await node.told() == [told]


async def test_a_disk_that_cannot_keep_manifests_stops_nothing(node: Node) -> None:
    node.kept.write_text("in the way")
    async with node.running():
        assert await node.names() == []
        node.write("web.yaml", manifest("web"))
        assert await node.names() == ["web"]


async def test_what_could_not_be_kept_is_kept_later_and_never_in_an_old_state(node: Node) -> None:
    node.write("web.yaml", manifest("web"))
    async with node.running(check_seconds=0.05):
        await node.pods()
        await node.kept_on_disk(1)
        (copy,) = node.kept.glob("*.json")
        in_the_way = copy.with_name(f".{copy.name}.new")
        in_the_way.mkdir()
        node.write("web.yaml", manifest("web", image="new"))
        (changed,) = await node.pods()
        await node.kept_on_disk(0)
        in_the_way.rmdir()
        await node.kept_on_disk(1)
    node.write("web.yaml", "kind: [")
    async with node.running():
        assert await node.pods() == (changed,)


async def test_cancelling_does_not_wait_for_a_disk_that_hangs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, released = threading.Event(), threading.Event()
    real: Callable[[Path], object] = Path.iterdir

    def hangs(path: Path) -> object:
        hanging.set()
        released.wait(DEADLINE_SECONDS)
        return real(path)

    monkeypatch.setattr(Path, "iterdir", hangs)
    try:
        with trio.fail_after(DEADLINE_SECONDS / 2):
            async with node.running():
                while not hanging.is_set():
                    await trio.lowlevel.checkpoint()
    finally:
        released.set()


async def test_a_manifest_with_a_lone_surrogate_is_named_and_the_others_run(node: Node) -> None:
    node.write("sur.json", manifest_json("sur", image="\ud800x"))
    node.write("web.yaml", manifest("web"))
    async with node.running():
        assert await node.names() == ["web"]
        ((file, event, words),) = await node.told()
    assert (file, event) == ("sur.json", "Rejected")
    assert words.startswith(r'spec.containers[0].image: Invalid value: "\ud800x": must be valid')


async def test_a_bug_that_one_pod_brings_out_ends_no_source(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt(pod: Pod, source: Source) -> str | None:
        if pod.metadata.name.startswith("bad"):
            raise RuntimeError("a bug")
        return None

    monkeypatch.setattr(node, "_adopt", adopt)
    node.write("bad.yaml", manifest("bad"))
    node.write("web.yaml", manifest("web"))
    with capture_logs() as logs:
        async with node.running():
            assert await node.names() == ["bad", "web"]
    assert [e["pod"] for e in logs if e["event"] == "static pod UID adoption failed"] == [
        f"default/bad-{NODE}"
    ]


async def test_a_look_that_fails_is_made_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([RuntimeError("a bug")])

    def failing_once(*arguments: object) -> object:
        for error in looks:
            raise error
        return look(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("trio_kubelet.sources.manifest_watch.look", failing_once)
    node.write("web.yaml", manifest("web"))
    async with node.running(check_seconds=0.01):
        assert await node.names() == ["web"]


def manifest_json(name: str, *, image: str) -> str:
    spec = {"containers": [{"name": "c", "image": image}]}
    metadata = {"name": name}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


async def test_thousands_of_pods_are_taken_in_many_turns(node: Node) -> None:
    """No turn is longer than `tests.turns` allows; to take them all at once takes twice as long."""
    updates = PodUpdates(SourceMerge(SystemClock(), EventRecorder(node.journal, NODE)))
    pods = node.context().pods(Source.FILE, partial(updates.take, Source.FILE))
    with making_test_data():
        one = reader().read("web", manifest("web").encode()).pods[0]
        many = tuple(
            evolve(
                one,
                manifest_uid=f"uid-{number}",
                pod=evolve(one.pod, metadata=evolve(one.pod.metadata, name=f"web-{number}")),
            )
            for number in range(PODS)
        )
    found = Manifest(origin="many", digest="1", pods=many)
    for _ in range(2):  # The second time they are compared with those before.
        with trio.fail_after(DEADLINE_SECONDS):
            await pods.take([found])
    update = updates.channel.receive_nowait()
    assert (update.op, len(update.pods)) == (PodOperation.ADD, PODS)
    with pytest.raises(trio.WouldBlock):
        updates.channel.receive_nowait()
