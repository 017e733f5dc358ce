"""Garbage collection of images, on the hollow runtime with a disk of which tests tell the size."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from attrs import evolve, field, frozen
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.errors import CollectionError
from trio_kubelet.hollow import (
    CallFault,
    HollowOptions,
    HollowRegistry,
    RemoteImage,
    ScriptedFaults,
    open_hollow_runtime,
)
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.images.collection import DiskSpace, ImageCollectionPolicy
from trio_kubelet.runtime.images.collector import (
    LOOK_SECONDS,
    PERIOD_SECONDS,
    ImageCollector,
    sandbox_images,
)
from trio_kubelet.runtime.images.filesystem import ImageDisk
from trio_kubelet.telemetry import EventRecorder, Journal

MI = 1 << 20
CAPACITY = 100 * MI


@frozen(kw_only=True)
class Node:
    """A node whose disk has 100 MiB, with images of 10 MiB each.

    `others` are MiB of the disk that are used by what is no image.
    """

    client: RuntimeClient
    collector: ImageCollector
    runtime_health: RuntimeHealth
    journal: Journal
    faults: ScriptedFaults
    pods: list[Pod]
    sources_known: trio.Event
    others: list[int]
    events: list[str]
    collected: list[str]
    tidied: list[float] = field(factory=list)

    async def images(self) -> list[str]:
        """The tags of the images that are there, in order of name."""
        found = await self.client.list_images()
        return sorted(tag.rpartition("/")[2] for each in found for tag in each.repo_tags)

    async def use(self, image: str) -> str:
        """Make a container of an image, whose sandbox is not of the agent's making."""
        meta = cri.PodSandboxMetadata(name=image, namespace="n", uid=image)
        config = cri.PodSandboxConfig(metadata=meta)
        sandbox = await self.client.run_pod_sandbox(config)
        container = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="c"), image=cri.ImageSpec(image=image)
        )
        return await self.client.create_container(sandbox, container, config)

    def removed(self) -> list[tuple[str, str]]:
        entries = [each for each in self.journal.entries() if each.event == "ImageRemoved"]
        assert self.collected == [each.cause for each in entries]
        return [(each.key.rpartition("/")[2], each.cause) for each in entries]


def pod(image: str) -> Pod:
    containers = (Container(name="c", image=image),)
    meta = ObjectMeta(name="p", namespace="n", uid="u")
    return Pod(metadata=meta, spec=PodSpec(containers=containers))


@asynccontextmanager
async def node(
    root: Path,
    *images: str,
    policy: ImageCollectionPolicy | None = None,
    on_disk: bool = True,
    answer: DiskSpace | None = None,
) -> AsyncIterator[Node]:
    clock, faults = TrioClock(), ScriptedFaults()
    remote = {
        f"docker.io/library/{name}": RemoteImage(size_bytes=10 * MI)
        for name in ("a:1", "b:1", "c:1", "d:1")
    }
    options = HollowOptions(images=images, registry=HollowRegistry(images=remote), faults=faults)
    async with open_hollow_runtime(clock, options) as runtime:
        client, journal, runtime_health = (
            RuntimeClient(InProcess(runtime)),
            Journal(clock),
            RuntimeHealth(),
        )
        runtime_health.update(RuntimeState(up=True, network_ready=True))
        recorder, events, others = EventRecorder(journal, "node"), list[str](), [0]
        recorder.on_event.add(lambda event: events.append(f"{event.reason}: {event.message}"))
        pods, tidied, known = list[Pod](), list[float](), trio.Event()

        def measure(_folder: str) -> DiskSpace:
            if answer is not None:
                return answer
            names = [tag for image in runtime.images._images.values() for tag in image.tags]
            used = sum(10 * MI for name in names if name in remote) + others[0] * MI
            return DiskSpace(available_bytes=CAPACITY - used, capacity_bytes=CAPACITY)

        async def tidy() -> None:
            tidied.append(trio.current_time())

        collector = ImageCollector(
            client=client,
            runtime_health=runtime_health,
            policy=policy or ImageCollectionPolicy(),
            disk=ImageDisk(client=client, measure_space=measure) if on_disk else None,
            pods=lambda: pods,
            sources_known=known,
            on_removed=tidy,
            root=root,
            clock=clock,
            journal=journal,
            recorder=recorder,
        )
        collected = list[str]()
        collector.on_collected.add(collected.append)
        yield Node(
            collected=collected,
            client=client,
            collector=collector,
            runtime_health=runtime_health,
            journal=journal,
            faults=faults,
            pods=pods,
            sources_known=known,
            others=others,
            events=events,
            tidied=tidied,
        )


async def run_for(node: Node, seconds: float) -> None:
    node.sources_known.set()
    with trio.move_on_after(seconds):
        await node.collector.run()


PAUSE = "pause:3.10"
ALL = ["a:1", "b:1", "c:1", PAUSE]


async def test_another_policy_holds_from_the_next_look_on(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at:
        at.others[0] = 40
        await run_for(at, 2 * PERIOD_SECONDS)
        assert await at.images() == ALL
        at.collector.use(ImageCollectionPolicy(high_percent=65, low_percent=60))
        await run_for(at, PERIOD_SECONDS)
        assert len(await at.images()) == len(ALL) - 1


async def test_a_disk_with_room_keeps_all_images(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at:
        at.others[0] = 54
        await run_for(at, 2 * PERIOD_SECONDS)
        assert await at.images() == ALL
        assert (at.events, at.tidied) == ([], [])


async def test_a_full_disk_loses_the_least_recently_used_until_it_is_under_the_low_threshold(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at:
        at.sources_known.set()
        for name in ("c:1", "a:1", "b:1"):
            container = await at.use(name)
            await at.collector.delete_unused_images()
            await at.client.remove_container(container)
            await trio.sleep(30)
        await trio.sleep(120)
        at.others[0] = 60
        await run_for(at, 1)
        assert await at.images() == ["a:1", "b:1", PAUSE]
        assert at.removed() == [("c:1", "space")]
        assert len(at.tidied) == 1


async def test_removal_goes_by_the_disk_and_not_by_the_sizes_of_images(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    full = DiskSpace(available_bytes=1 * MI, capacity_bytes=CAPACITY)
    async with node(tmp_path, "a:1", "b:1", "c:1", answer=full) as at:
        await run_for(at, 2 * PERIOD_SECONDS + 1)
        assert await at.images() == [PAUSE]
        assert at.events[0] == (
            "FreeDiskSpaceFailed: Failed to garbage collect required amount of images. Attempted "
            f"to free {19 * MI} bytes, but only found 0 bytes eligible to free."
        )
        assert at.events[-1].startswith("ImageGCFailed: Failed to garbage collect required")


@pytest.mark.parametrize("named", ["b:1", "docker.io/library/b:1"])
async def test_an_image_that_a_pod_names_or_a_container_has_stays_on_a_full_disk(
    autojump_clock: MockClock, tmp_path: Path, named: str
) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at:
        await at.use("c:1")
        at.pods.append(pod(named))
        at.others[0] = 69
        await run_for(at, PERIOD_SECONDS)
        await trio.sleep(120)
        await run_for(at, 1)
        assert await at.images() == ["b:1", "c:1", PAUSE]


async def test_a_pod_that_comes_while_images_are_removed_keeps_its_image(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at:
        at.sources_known.set()
        await at.collector.delete_unused_images()
        await trio.sleep(120)
        at.faults.add("RemoveImage", CallFault(delay_seconds=5))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.collector.delete_unused_images)
            await trio.sleep(1)
            at.pods.append(pod("b:1"))
        assert await at.images() == ["b:1", PAUSE]


async def test_a_new_image_makes_no_room(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with node(tmp_path, "a:1") as at:
        at.sources_known.set()
        await at.collector.delete_unused_images()
        assert await at.images() == ["a:1", PAUSE]
        await trio.sleep(120)
        await at.collector.delete_unused_images()
        assert await at.images() == [PAUSE]


async def test_an_image_that_nobody_has_used_for_too_long_goes_also_over_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    policy = ImageCollectionPolicy(maximum_age=timedelta(hours=1))
    async with node(tmp_path, "a:1", policy=policy, on_disk=False) as at:
        await run_for(at, 2000)
        assert await at.images() == ["a:1", PAUSE]
        restarted = evolve(at, collector=await _anew(at, tmp_path, policy))
        await run_for(restarted, 2000)
        assert await at.images() == [PAUSE]
        assert at.removed() == [("a:1", "age")]


async def _anew(at: Node, root: Path, policy: ImageCollectionPolicy) -> ImageCollector:
    """The collector of the next agent."""
    collector = ImageCollector(
        client=at.client,
        runtime_health=at.runtime_health,
        policy=policy,
        disk=None,
        pods=lambda: at.pods,
        sources_known=at.sources_known,
        on_removed=trio.lowlevel.checkpoint,
        root=root,
        clock=TrioClock(),
        journal=at.journal,
        recorder=EventRecorder(at.journal, "node"),
    )
    collector.on_collected.add(at.collected.append)
    return collector


async def test_a_disk_that_fills_up_between_two_rounds_is_cleaned_before_the_next(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at, trio.open_nursery() as nursery:
        at.sources_known.set()
        nursery.start_soon(at.collector.run)
        await trio.sleep(150)
        assert await at.images() == ALL
        at.others[0] = 69
        await trio.sleep(LOOK_SECONDS + 1)
        assert len(await at.images()) == 2
        nursery.cancel_scope.cancel()


async def test_a_disk_that_cannot_be_measured_between_two_rounds_does_not_end_collection(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1", "b:1", "c:1") as at, trio.open_nursery() as nursery:
        at.sources_known.set()
        nursery.start_soon(at.collector.run)
        await trio.sleep(150)
        unknown = at.others.pop()
        await trio.sleep(LOOK_SECONDS + 1)
        at.others.append(unknown + 69)
        await trio.sleep(LOOK_SECONDS + 1)
        assert len(await at.images()) == 2
        nursery.cancel_scope.cancel()


async def test_images_stay_while_it_is_not_known_which_pods_there_are_to_be(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    policy = ImageCollectionPolicy(minimum_age=timedelta())
    async with node(tmp_path, "a:1", policy=policy) as at, trio.open_nursery() as nursery:
        at.others[0] = 95
        nursery.start_soon(at.collector.run)
        await trio.sleep(PERIOD_SECONDS - 1)
        assert await at.images() == ["a:1", PAUSE]
        at.sources_known.set()
        await trio.sleep(1)
        assert await at.images() == [PAUSE]
        nursery.cancel_scope.cancel()


async def test_a_node_that_needs_room_at_once_waits_too_until_the_pods_are_known(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    policy = ImageCollectionPolicy(minimum_age=timedelta())
    async with node(tmp_path, "a:1", "b:1", policy=policy) as at, trio.open_nursery() as nursery:
        nursery.start_soon(at.collector.run)
        nursery.start_soon(at.collector.delete_unused_images)
        await trio.sleep(PERIOD_SECONDS - 1)
        assert await at.images() == ["a:1", "b:1", PAUSE]
        at.pods.append(pod("b:1"))
        await trio.sleep(2)
        assert await at.images() == ["b:1", PAUSE]
        nursery.cancel_scope.cancel()


async def test_an_image_that_cannot_be_removed_keeps_no_other(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1", "b:1") as at:
        at.sources_known.set()
        await at.collector.delete_unused_images()
        await trio.sleep(120)
        at.faults.add("RemoveImage", CallFault(error=RpcError(Code.UNKNOWN, "busy")))
        with pytest.raises(CollectionError, match="busy"):
            await at.collector.delete_unused_images()
        assert len(await at.images()) == 2


async def test_what_goes_wrong_is_told_of_when_it_goes_wrong_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, "a:1") as at:
        for _ in range(2):
            at.faults.add("ListImages", CallFault(error=RpcError(Code.UNKNOWN, "broken")))
        await run_for(at, 3 * PERIOD_SECONDS)
        [event] = at.events
        assert event.startswith("ImageGCFailed: ")
        assert "broken" in event


@pytest.mark.parametrize("high", [85, 100])
async def test_a_disk_without_size_is_told_of_unless_collection_is_off(
    autojump_clock: MockClock, tmp_path: Path, high: int
) -> None:
    nothing = DiskSpace(available_bytes=0, capacity_bytes=0)
    policy = ImageCollectionPolicy(high_percent=high)
    async with node(tmp_path, "a:1", policy=policy, answer=nothing) as at:
        await run_for(at, PERIOD_SECONDS + 1)
        told = [
            "InvalidDiskCapacity: invalid capacity 0 on image filesystem",
            "InvalidDiskCapacity: invalid capacity 0 on image filesystem",
            "ImageGCFailed: invalid capacity 0 on image filesystem",
        ]
        assert at.events == (told if high < 100 else [])


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ('{"sandboxImage": "pause:1"}', {"docker.io/library/pause:1"}),
        ('{"sandboxImage": 7}', set()),
        ("{}", set()),
        ("[]", set()),
        ("{", set()),
        ("[" * 100_000, set()),
    ],
)
def test_the_image_of_sandboxes_is_what_the_runtime_is_configured_with(
    config: str, names: set[str]
) -> None:
    assert sandbox_images({"config": config}) == names
    assert sandbox_images({}) == frozenset()
