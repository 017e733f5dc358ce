"""Images fill up a disk of their own, and are removed until it has room, on real containerds.

`TRIO_KUBELET_IMAGES` is how many there are; 200 in `nox -s images`.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lab import UnavailableError, host
from lab.agent import LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import BUSYBOX, PAUSE, SLEEPER, File, Image
from lab.processes import wait_until
from lab.registry import Registry
from tests.containerds import ASKED_FOR, VERSIONS
from tests.integration.pods import NODE_NAME, Node, is_over, until_term
from tests.missing import do_without
from tests.trio_clock import TrioClock
from tests.turns import making_test_data
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.images.collection import ImageCollectionPolicy
from trio_kubelet.runtime.images.collector import (
    FAILED,
    NO_ROOM,
    PERIOD_SECONDS,
    ImageCollector,
)
from trio_kubelet.runtime.images.filesystem import ImageDisk
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.volumes.mount import mount

IMAGES = int(os.environ.get("TRIO_KUBELET_IMAGES", "24"))
MI = 1 << 20
HIGH, LOW = 60, 50
DEADLINE_SECONDS = 180.0


@pytest.fixture(params=VERSIONS, ids=lambda version: f"containerd-{version}")
def small(
    request: pytest.FixtureRequest, real_containers: None, tmp_path: Path
) -> Iterator[Containerd]:
    """A containerd whose root is a disk of its own, 2 MiB for each image and 64 MiB more."""
    containerd = Containerd(request.param, tmp_path / "c")
    disk = containerd.folder / "root"
    disk.mkdir(parents=True)
    mount("tmpfs", disk, "tmpfs", options=f"size={IMAGES * 2 + 64}m")
    try:
        containerd.start()
        yield containerd
    except UnavailableError as reason:
        do_without(str(reason), asked_for=bool(ASKED_FOR))
    finally:
        containerd.stop()
        host.detach_mounts_below(containerd.folder)


def filling(base: Image, number: int) -> Image:
    """An image with a layer of 1 MiB that no other has."""
    layer = {"filling": File(0o644, Random(number).randbytes(MI))}
    return replace(base, name=f"localhost/lab/filling-{number}:1", layers=(*base.layers, layer))


def used_percent(containerd: Containerd) -> float:
    found = os.statvfs(containerd.folder / "root")
    return 100 - found.f_bavail * 100 / found.f_blocks


def names(containerd: Containerd) -> set[str]:
    """The images of the runtime by their tags."""
    listed = containerd.ctr("images", "list", "--quiet").split()
    return {name for name in listed if not name.startswith("sha256:") and "@" not in name}


def test_a_full_disk_gets_room_keeps_what_is_used_and_has_the_rest_pulled_again(
    small: Containerd, tmp_path: Path
) -> None:
    settings = {
        "imageGCHighThresholdPercent": HIGH,
        "imageGCLowThresholdPercent": LOW,
        "imageMinimumGCAge": "1ms",  # zero would be the default, two minutes
    }
    base = small.images[BUSYBOX]
    with (
        Registry(tmp_path / "registry") as registry,
        LabAgent(tmp_path / "node", endpoint=small.endpoint, settings=settings) as agent,
    ):
        registry.serve_to(small.registries)
        pulled = registry.push(base.marked("pulled"), "lab/pulled:1")
        node = Node(agent=agent, containerd=small)
        node.run(pod_manifest("stays", {"name": "c", "image": SLEEPER}))
        once = {**until_term("c"), "image": pulled, "command": ["true"]}
        node.add(pod_manifest("once", once, restartPolicy="Never"))
        node.wait("once", is_over)
        node.remove("once")
        node.wait_gone("once")
        small.import_images(filling(base, number) for number in range(IMAGES))
        fill_up(small.folder / "root" / "some", small, HIGH + 2)

        wait_until(
            lambda: used_percent(small) < LOW + 1,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{used_percent(small):.0f} % used by {names(small)}",
        )
        left = names(small)
        assert {SLEEPER, PAUSE, pulled} <= left, "in use, of the sandboxes, used last"
        gone = {f"localhost/lab/filling-{number}:1" for number in range(IMAGES)} - left
        assert 0 < len(gone) < IMAGES, "no more than needed"

        fill_up(small.folder / "root" / "more", small, 90)
        wait_until(
            lambda: pulled not in names(small),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{used_percent(small):.0f} % used, {agent.last_words()}",
        )
        assert {SLEEPER, PAUSE} <= names(small)

        fill_up(small.folder / "root" / "most", small, 90)
        wait_until(
            lambda: NO_ROOM in told_of_the_node(agent),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{used_percent(small):.0f} % used, {agent.last_words()}",
        )
        for name in ("more", "most"):
            (small.folder / "root" / name).unlink()
        node.add(pod_manifest("again", {**until_term("c"), "image": pulled}))
        node.wait("again", is_running)
        assert "Successfully pulled image" in str(node.events("again"))
        node.remove_all()


@pytest.fixture
def hastened() -> MockClock:
    """A clock that goes as the real one does, and can be put forward."""
    return MockClock(rate=1.0)


async def test_a_disk_that_stays_full_of_images_in_use_is_told_of_in_each_round(
    small: Containerd, tmp_path: Path, hastened: MockClock
) -> None:
    """The five minutes between two rounds pass at once."""
    with making_test_data():
        fill_up(small.folder / "root" / "some", small, HIGH + 2)
    before = names(small)
    clock, told = TrioClock(), list[tuple[str, str]]()
    news, told_next = trio.open_memory_channel[tuple[str, str]](5)
    journal, health, sources_known = Journal(clock), RuntimeHealth(), trio.Event()
    recorder = EventRecorder(journal, "node")
    recorder.on_event.add(lambda event: news.send_nowait((event.reason, event.message)))
    health.update(RuntimeState(up=True, network_ready=True))
    sources_known.set()
    containers = tuple(Container(name="c", image=each) for each in before)
    waiting = Pod(metadata=ObjectMeta(name="p", uid="u"), spec=PodSpec(containers=containers))
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        client = RuntimeClient(Channel(small.endpoint))
        collector = ImageCollector(
            client=client,
            runtime_health=health,
            policy=ImageCollectionPolicy(
                high_percent=HIGH, low_percent=LOW, minimum_age=timedelta()
            ),
            disk=ImageDisk(client=client),
            pods=lambda: (waiting,),
            sources_known=sources_known,
            on_removed=trio.lowlevel.checkpoint,
            root=tmp_path,
            clock=clock,
            journal=journal,
            recorder=recorder,
        )
        nursery.start_soon(collector.run)
        for events in (1, 2, 2):
            with trio.fail_after(DEADLINE_SECONDS):
                told += [await told_next.receive() for _ in range(events)]
            await wait_all_tasks_blocked()
            hastened.jump(PERIOD_SECONDS)
        nursery.cancel_scope.cancel()
    words = (
        r"Failed to garbage collect required amount of images. Attempted to free \d+ bytes, "
        r"but only found 0 bytes eligible to free."
    )
    assert all(re.fullmatch(words, message) for _, message in told), told
    assert [reason for reason, _ in told] == [NO_ROOM, NO_ROOM, FAILED, NO_ROOM, FAILED]
    assert names(small) == before


def told_of_the_node(agent: LabAgent) -> set[str]:
    """The reasons of the events about the node."""
    entries = agent.ask(f"/debug/journal?pod={NODE_NAME}")["entries"]
    return {entry["event"] for entry in entries if entry["kind"] == "event"}


def fill_up(file: Path, containerd: Containerd, percent: int) -> None:
    """Use so much of the disk, by what is no image."""
    found = os.statvfs(file.parent)
    wanted = found.f_bavail - found.f_blocks * (100 - percent) // 100
    file.write_bytes(bytes(max(0, wanted) * found.f_frsize))
    assert used_percent(containerd) > HIGH
