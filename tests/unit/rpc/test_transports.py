"""What a caller may rely on, on a socket and in process alike."""

from typing import Any

import pytest
import structlog
import trio

from tests.turns import making_test_data
from tests.unit.rpc.conftest import SteeredService
from trio_kubelet.rpc import (
    MOST_MESSAGE_CHARACTERS,
    Code,
    FieldCut,
    RpcError,
    Transport,
    when_sent,
)
from trio_kubelet.rpc.stubs.runtime import v1 as cri

MIB = 2**20


async def test_a_call_returns_the_answer(transport: Transport) -> None:
    request = cri.VersionRequest(version="v1")
    answer = await transport.unary(cri.RuntimeServiceStub.version, request)
    assert answer == cri.VersionResponse(version="v1", runtime_name="steered")


async def test_a_raw_call_returns_the_bytes_of_the_answer(transport: Transport) -> None:
    request = cri.VersionRequest(version="v1")
    answer = await transport.unary_raw(cri.RuntimeServiceStub.version, request)
    assert answer == bytes(cri.VersionResponse(version="v1", runtime_name="steered"))


async def test_nothing_is_shared_by_reference(
    transport: Transport, service: SteeredService
) -> None:
    request = cri.VersionRequest(version="v1")
    await transport.unary(cri.RuntimeServiceStub.version, request)
    (received,) = service.received
    assert received == request
    assert received is not request


async def test_an_error_of_the_service_arrives_with_its_code_and_message(
    transport: Transport,
) -> None:
    request = cri.StartContainerRequest(container_id="NOT_FOUND")
    with pytest.raises(RpcError) as caught:
        await transport.unary(cri.RuntimeServiceStub.start_container, request)
    assert caught.value.code is Code.NOT_FOUND
    assert caught.value.message == "kein Behälter: 100 % wég"
    assert str(caught.value) == "NOT_FOUND: kein Behälter: 100 % wég"


async def test_a_bug_in_the_service_is_internal_and_logged(transport: Transport) -> None:
    request = cri.StartContainerRequest(container_id="bug")
    with structlog.testing.capture_logs() as logs, pytest.raises(RpcError) as caught:
        await transport.unary(cri.RuntimeServiceStub.start_container, request)
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == "KeyError: 'bug'"
    (entry,) = logs
    assert entry["event"] == "rpc service failed"
    assert entry["method"] == "/runtime.v1.RuntimeService/StartContainer"


async def test_a_method_that_the_service_lacks_is_unimplemented(transport: Transport) -> None:
    with pytest.raises(RpcError) as caught:
        await transport.unary(cri.ImageServiceStub.list_images, cri.ListImagesRequest())
    assert caught.value.code is Code.UNIMPLEMENTED


async def test_a_deadline_ends_the_call_here_and_in_the_service(
    transport: Transport, service: SteeredService
) -> None:
    seconds = 0.05
    while not service.hanging.is_set():
        with pytest.raises(RpcError) as caught:
            await transport.unary(
                cri.RuntimeServiceStub.status, cri.StatusRequest(), deadline_seconds=seconds
            )
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        seconds *= 2  # On a busy machine it may have passed on the way to the service.
    with trio.fail_after(60):
        await service.cancelled.wait()


async def test_cancelling_the_caller_cancels_the_service(
    transport: Transport, service: SteeredService
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.unary, cri.RuntimeServiceStub.status, cri.StatusRequest())
            await service.hanging.wait()
            nursery.cancel_scope.cancel()
        await service.cancelled.wait()


async def test_a_call_of_a_cancelled_caller_raises_nothing_else(transport: Transport) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await transport.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())
    assert scope.cancelled_caught


async def test_messages_of_16_mib_pass_both_ways(transport: Transport) -> None:
    with making_test_data():  # The service encodes 32 MiB.
        request = cri.ExecSyncRequest(cmd=["y" * 16 * MIB], timeout=16 * MIB)
        answer = await transport.unary(cri.RuntimeServiceStub.exec_sync, request)
    assert len(answer.stdout) == 16 * MIB
    assert len(answer.stderr) == 16 * MIB


async def test_of_long_fields_the_rest_is_dropped_where_they_are_cut(transport: Transport) -> None:
    with making_test_data():
        request = cri.ExecSyncRequest(cmd=["y" * 16 * MIB], timeout=16 * MIB)
        cut = FieldCut(1000)
        answer = await transport.unary(cri.RuntimeServiceStub.exec_sync, request, cut=cut)
    assert (answer.stdout, answer.stderr) == (b"x" * 1000, b"y" * 1000)
    assert cut.received > 32 * MIB


async def test_a_callback_says_when_a_request_is_sent(
    transport: Transport, service: SteeredService
) -> None:
    sent = trio.Event()

    async def call() -> None:
        with when_sent(sent.set):
            await transport.unary(cri.RuntimeServiceStub.status, cri.StatusRequest())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await sent.wait()
            await service.hanging.wait()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("characters", [100, MOST_MESSAGE_CHARACTERS, 10 * MIB])
def test_the_message_of_an_error_is_cut(characters: int) -> None:
    error = RpcError(Code.UNKNOWN, "x" * characters)
    assert len(error.message) == min(characters, MOST_MESSAGE_CHARACTERS)


async def test_hundreds_of_calls_run_at_once(transport: Transport, service: SteeredService) -> None:
    async def call(number: int) -> None:
        request = cri.VersionRequest(version=str(number))
        answer = await transport.unary(cri.RuntimeServiceStub.version, request)
        assert answer.version == str(number)

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(call, number)
    assert len(service.received) == 300


async def test_hundreds_of_long_calls_are_under_way_at_once(
    transport: Transport, service: SteeredService
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(
                    transport.unary, cri.RuntimeServiceStub.status, cri.StatusRequest()
                )
            while service.hanging_now < 300:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        while service.cancelled_count < 300:
            await trio.lowlevel.checkpoint()


async def test_a_stream_yields_all_answers_and_ends(transport: Transport) -> None:
    request = cri.StreamContainersRequest(filter=cri.ContainerFilter(id="1000"))
    async with transport.stream(cri.RuntimeServiceStub.stream_containers, request) as answers:
        ids = [answer.containers[0].id async for answer in answers]
    assert ids == [str(number) for number in range(1000)]


async def test_a_stream_that_fails_yields_what_came_before(transport: Transport) -> None:
    labels = {"fail": "yes"}
    request = cri.StreamContainersRequest(filter=cri.ContainerFilter(id="2", label_selector=labels))
    async with transport.stream(cri.RuntimeServiceStub.stream_containers, request) as answers:
        seen = [(await anext(answers)).containers[0].id, (await anext(answers)).containers[0].id]
        with pytest.raises(RpcError) as caught:
            await anext(answers)
    assert seen == ["0", "1"]
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert caught.value.message == "no more"


async def test_a_stream_that_the_service_lacks_is_unimplemented(transport: Transport) -> None:
    async def read() -> None:
        request = cri.StreamImagesRequest()
        async with transport.stream(cri.ImageServiceStub.stream_images, request) as answers:
            await anext(answers)

    with pytest.raises(RpcError) as caught:
        await read()
    assert caught.value.code is Code.UNIMPLEMENTED


async def test_a_list_that_is_streamed_is_gathered_as_one_message(transport: Transport) -> None:
    request = cri.StreamContainersRequest(filter=cri.ContainerFilter(id="1200"))
    answer = await transport.gather_raw(
        cri.RuntimeServiceStub.stream_containers, request, max_bytes=MIB
    )
    containers = cri.ListContainersResponse().parse(answer).containers
    assert [each.id for each in containers] == [str(number) for number in range(1200)]
    nothing = cri.StreamContainersRequest(filter=cri.ContainerFilter(id="0"))
    assert not await transport.gather_raw(
        cri.RuntimeServiceStub.stream_containers, nothing, max_bytes=MIB
    )


async def test_a_list_that_is_streamed_without_end_is_given_up(
    transport: Transport, service: SteeredService
) -> None:
    request = cri.StreamContainersRequest(
        filter=cri.ContainerFilter(id="1000000000", pod_sandbox_id="x" * MIB)
    )
    with pytest.raises(RpcError, match="larger than max") as caught, trio.fail_after(60):
        await transport.gather_raw(
            cri.RuntimeServiceStub.stream_containers, request, max_bytes=4 * MIB
        )
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    with trio.fail_after(60):
        await service.cancelled.wait()


async def test_of_a_list_that_breaks_off_nothing_is_gathered(transport: Transport) -> None:
    labels = {"fail": "yes"}
    request = cri.StreamContainersRequest(filter=cri.ContainerFilter(id="2", label_selector=labels))
    with pytest.raises(RpcError, match="no more"):
        await transport.gather_raw(cri.RuntimeServiceStub.stream_containers, request, max_bytes=MIB)


async def test_leaving_a_stream_cancels_the_service(
    transport: Transport, service: SteeredService
) -> None:
    with trio.fail_after(60):
        async with transport.stream(
            cri.RuntimeServiceStub.get_container_events, cri.GetEventsRequest()
        ) as events:
            first = await anext(events)
            assert first.container_id == "0"
            await service.hanging.wait()
        await service.cancelled.wait()


async def test_leaving_a_busy_stream_is_no_fault_of_the_service(
    transport: Transport, service: SteeredService
) -> None:
    request = cri.StreamContainersRequest(filter=cri.ContainerFilter(id="1000000"))
    with structlog.testing.capture_logs() as logs, trio.fail_after(60):
        for _ in range(5):
            service.cancelled = trio.Event()
            async with transport.stream(
                cri.RuntimeServiceStub.stream_containers, request
            ) as answers:
                await anext(answers)
            await service.cancelled.wait()
    assert logs == []


async def test_a_deadline_ends_a_stream(transport: Transport, service: SteeredService) -> None:
    seconds, seen = 0.1, list[str]()

    async def read_all() -> None:
        async with transport.stream(
            cri.RuntimeServiceStub.get_container_events,
            cri.GetEventsRequest(),
            deadline_seconds=seconds,
        ) as events:
            async for event in events:
                seen.append(event.container_id)

    with trio.fail_after(60):
        while len(seen) < 3:
            seen.clear()
            with pytest.raises(RpcError) as caught:
                await read_all()
            assert caught.value.code is Code.DEADLINE_EXCEEDED
            seconds *= 2  # On a busy machine it may have passed before the last of them came.
        await service.cancelled.wait()
    assert seen == ["0", "1", "2"]


async def test_giving_up_the_wait_for_an_answer_loses_none(
    transport: Transport, service: SteeredService
) -> None:
    seen: list[str] = []
    async with transport.stream(
        cri.RuntimeServiceStub.get_container_events, cri.GetEventsRequest()
    ) as events:
        with trio.fail_after(60):
            while len(seen) < 3:
                with trio.move_on_after(0.0001):
                    seen.append((await anext(events)).container_id)
    assert seen == ["0", "1", "2"]


async def test_an_error_of_the_body_of_a_stream_passes_as_it_is(transport: Transport) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with transport.stream(
            cri.RuntimeServiceStub.get_container_events, cri.GetEventsRequest()
        ):
            raise LookupError("mine")


async def test_a_slow_reader_holds_up_its_own_stream_and_no_other_call(
    transport: Transport, service: SteeredService
) -> None:
    kibibytes_64 = "z" * 65536
    count = 800
    request = cri.StreamContainersRequest(
        filter=cri.ContainerFilter(id=str(count), pod_sandbox_id=kibibytes_64)
    )
    with trio.fail_after(60):
        async with transport.stream(cri.RuntimeServiceStub.stream_containers, request) as answers:
            await anext(answers)
            for _ in range(20):
                await transport.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())
            assert service.answers_left_service < count
            left = [answer.containers[0].id async for answer in answers]
    assert len(left) == count - 1


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        (cri.RuntimeServiceStub.start_container, cri.StartContainerRequest(container_id="\ud800")),
        (cri.RuntimeServiceStub.stop_container, cri.StopContainerRequest(timeout=2**63)),
    ],
)
async def test_what_no_message_can_hold_is_an_error_of_the_call(
    transport: Transport, method: Any, request_: Any
) -> None:
    with pytest.raises(RpcError, match=f"cannot encode {type(request_).__name__}") as caught:
        await transport.unary(method, request_)
    assert caught.value.code is Code.INVALID_ARGUMENT
