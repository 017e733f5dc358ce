"""A node that pulls images from a registry in memory, and what it says of that."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import frozen

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import (
    HollowOptions,
    HollowRegistry,
    HollowRuntime,
    RemoteImage,
    open_hollow_runtime,
)
from trio_kubelet.k8s import Container, ObjectMeta, Pod, Secret
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.images.access import Verification
from trio_kubelet.runtime.images.credentials import Keyring
from trio_kubelet.runtime.images.manager import ImageManager
from trio_kubelet.runtime.images.pod_images import PodImages, WantedImage
from trio_kubelet.runtime.images.pull_rate import PullRate
from trio_kubelet.runtime.images.pull_records import ImageAccess, PullRecords
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u"))


NOT_FOUND = RpcError(Code.NOT_FOUND, "no such image")


SANDBOX = cri.PodSandboxConfig()


@frozen(kw_only=True)
class Node:
    images: ImageManager
    runtime: HollowRuntime
    known: PodImages
    events: list[RecordedEvent]

    async def ensure(self, image: str, policy: str = "", name: str = "c") -> cri.Image:
        container = Container(name=name, image=image, image_pull_policy=policy)
        wanted = WantedImage.of_container(container)
        return await self.images.ensure(POD, wanted, self.known, SANDBOX)

    def said(self) -> list[str]:
        said = [f"{event.reason}: {event.message}" for event in self.events]
        self.events.clear()
        return said


PRIVATE = "registry.test/private:1"


def closed(*, failures: tuple[RpcError, ...] = ()) -> HollowRegistry:
    """A registry that gives its image to whoever knows the password."""
    remote = RemoteImage(credentials=("me", "good"), failures=failures)
    return HollowRegistry(images={PRIVATE: remote})


def secret(password: str, name: str = "key") -> Secret:
    auth = {"username": "me", "password": password}
    return Secret(
        metadata=ObjectMeta(name=name, namespace="ns", uid=name),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": json.dumps({"auths": {"registry.test": auth}}).encode()},
    )


async def pull_records(root: Path) -> PullRecords:
    records = PullRecords(root, Verification(), TrioClock())
    await records.load()
    return records


@asynccontextmanager
async def node(
    *,
    present: tuple[str, ...] = (),
    registry: HollowRegistry | None = None,
    limit: int = 1,
    rate: PullRate | None = None,
    keyring: Keyring | None = None,
    pod_keyring: Keyring | None = None,
    access: ImageAccess | None = None,
) -> AsyncIterator[Node]:
    clock = TrioClock()
    journal = Journal(clock)
    recorder = EventRecorder(journal, "node")
    events: list[RecordedEvent] = []
    recorder.on_event.add(events.append)

    async def of_pod(pod: Pod) -> Keyring:
        return pod_keyring or Keyring()

    options = HollowOptions(images=present, registry=registry or HollowRegistry())
    async with open_hollow_runtime(clock, options) as runtime:
        yield Node(
            images=ImageManager(
                client=RuntimeClient(InProcess(runtime)),
                recorder=recorder,
                journal=journal,
                clock=clock,
                limiter=FairLimiter(limit, limit),
                rate=rate or PullRate(0, 0),
                read_keyring=lambda: keyring or Keyring(),
                pod_keyring=of_pod,
                access=access or ImageAccess(),
            ),
            runtime=runtime,
            known=PodImages(),
            events=events,
        )


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()
