"""A service that tests can steer, reached through each of the transports."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from trio_kubelet.rpc import Channel, Code, InProcess, RpcError, Transport, open_rpc_loop, serve
from trio_kubelet.rpc.loop import RpcLoop
from trio_kubelet.rpc.stubs.runtime import v1 as cri


class SteeredService:
    """Answers, fails, hangs and streams as the requests ask it to."""

    def __init__(self) -> None:
        self.hanging = trio.Event()
        self.cancelled = trio.Event()
        self.hanging_now = 0
        self.cancelled_count = 0
        self.answers_left_service = 0
        self.received: list[object] = []

    async def version(self, request: cri.VersionRequest) -> cri.VersionResponse:
        """Says what it was told."""
        await trio.lowlevel.checkpoint()
        self.received.append(request)
        return cri.VersionResponse(version=request.version, runtime_name="steered")

    async def start_container(
        self, request: cri.StartContainerRequest
    ) -> cri.StartContainerResponse:
        """Fails as its request says: `NOT_FOUND`, or a bug."""
        await trio.lowlevel.checkpoint()
        if request.container_id == "bug":
            raise KeyError("bug")
        raise RpcError(Code[request.container_id], "kein Behälter: 100 % wég")

    async def status(self, _: cri.StatusRequest) -> cri.StatusResponse:
        """Hangs until cancelled."""
        self.hanging_now += 1
        self.hanging.set()
        try:
            await trio.sleep_forever()
        finally:
            self.hanging_now -= 1
            self.cancelled_count += 1
            self.cancelled.set()
        raise AssertionError

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        """Gives back as many bytes as it was asked for, and the last of those it got."""
        await trio.lowlevel.checkpoint()
        return cri.ExecSyncResponse(stdout=b"x" * request.timeout, stderr=request.cmd[0].encode())

    async def get_container_events(
        self, _: cri.GetEventsRequest
    ) -> AsyncIterator[cri.ContainerEventResponse]:
        """Three events, then hangs."""
        for number in range(3):
            yield cri.ContainerEventResponse(container_id=str(number))
        self.hanging.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    async def stream_containers(
        self, request: cri.StreamContainersRequest
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        """As many answers as its filter's id says, then an error if it asks for one."""
        try:
            for number in range(int(request.filter.id)):
                self.answers_left_service += 1
                container = cri.Container(id=str(number), image_ref=request.filter.pod_sandbox_id)
                yield cri.StreamContainersResponse(containers=[container])
        finally:
            self.cancelled.set()
        if request.filter.label_selector:
            raise RpcError(Code.RESOURCE_EXHAUSTED, "no more")


@pytest.fixture
async def service() -> SteeredService:
    return SteeredService()


@pytest.fixture
async def rpc_loop() -> AsyncIterator[RpcLoop]:
    async with open_rpc_loop() as loop:
        yield loop


@pytest.fixture
async def socket(rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve, [service], tmp_path / "steered.sock")
        nursery.cancel_scope.cancel()


@pytest.fixture
async def channel(socket: str) -> Channel:
    return Channel(f"unix://{socket}")


@pytest.fixture(params=["on a socket", "in process"])
async def transport(
    request: pytest.FixtureRequest, service: SteeredService, channel: Channel
) -> Transport:
    """Whatever holds for one transport holds for the other."""
    return channel if request.param == "on a socket" else InProcess(service)
