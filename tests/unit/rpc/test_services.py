"""What a service answers is sent as it was encoded ahead, or else encoded where it is sent."""

from collections.abc import AsyncIterator

import betterproto
import pytest
import structlog
import trio

from trio_kubelet.rpc import Code, RpcError, encode_ahead
from trio_kubelet.rpc.methods import method_of
from trio_kubelet.rpc.services import Services
from trio_kubelet.rpc.stubs.runtime import v1 as cri

VERSION = method_of(cri.RuntimeServiceStub.version)
EVENTS = method_of(cri.RuntimeServiceStub.get_container_events)


class Service:
    """Answers what it was made with."""

    def __init__(self, answer: betterproto.Message) -> None:
        self._answer = answer

    async def version(self, _: cri.VersionRequest) -> betterproto.Message:
        """The answer."""
        await trio.lowlevel.checkpoint()
        return self._answer

    async def get_container_events(
        self, _: cri.GetEventsRequest
    ) -> AsyncIterator[betterproto.Message]:
        """The answer, twice."""
        for _number in range(2):
            await trio.lowlevel.checkpoint()
            yield self._answer


async def test_an_answer_that_was_encoded_ahead_is_not_encoded_again() -> None:
    answer = cri.VersionResponse(version="ahead")
    encode_ahead(answer)
    answer.version = "since"  # which only an encoding of now would have
    sent = await Services(Service(answer)).unary(VERSION, b"")
    assert cri.VersionResponse().parse(sent).version == "ahead"


async def test_an_answer_of_a_stream_that_was_encoded_ahead_is_sent_so_once() -> None:
    answer, sent = cri.ContainerEventResponse(container_id="ahead"), list[str]()
    encode_ahead(answer)
    answer.container_id = "since"

    async def send(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(cri.ContainerEventResponse().parse(data).container_id)

    await Services(Service(answer)).stream(EVENTS, b"", send)
    assert sent == ["ahead", "since"]


async def test_an_answer_that_cannot_be_encoded_is_a_bug_of_the_service() -> None:
    answer = cri.VersionResponse(version="\ud800")
    with structlog.testing.capture_logs() as logs, pytest.raises(RpcError) as caught:
        await Services(Service(answer)).unary(VERSION, b"")
    assert caught.value.code is Code.INTERNAL
    assert [each["event"] for each in logs] == ["rpc service failed"]
