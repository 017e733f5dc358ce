"""The client's calls: what reaches the runtime, what comes back, and how long each may take."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import TypeVar

import pytest
import trio
from betterproto import Message
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.turns import making_test_data
from trio_kubelet.rpc import Code, FieldCut, InProcess, RpcError, is_present
from trio_kubelet.rpc.messages import encode
from trio_kubelet.rpc.methods import RequestT, ResponseT, UnaryStub
from trio_kubelet.rpc.stubs.containerd.services.tasks.v1 import DeleteResponse, DeleteTaskRequest
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient

M = TypeVar("M", bound=Message)

IMAGE = cri.ImageSpec(image="busybox:latest")
SANDBOX = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="web", uid="1"))
CONTAINER = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="c"))


class RecordingRuntime:
    """Keeps the requests; answers each with what was put there for its method."""

    def __init__(self, **answers: Message) -> None:
        self.requests: list[Message] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[[Message], Awaitable[Message]]:
        if name not in self._answers:
            raise AttributeError(name)

        async def handler(request: Message) -> Message:
            self.requests.append(request)
            return self._answers[name]

        return handler


class HangingRuntime:
    """Answers nothing, ever."""

    def __getattr__(self, name: str) -> Callable[[Message], Awaitable[Message]]:
        async def handler(request: Message) -> Message:
            await trio.sleep_forever()
            raise AssertionError

        return handler


Call = Callable[[RuntimeClient], Awaitable[object]]

DEADLINES: dict[str, tuple[Call, float]] = {
    "version": (lambda client: client.version(), 120),
    "status": (lambda client: client.status(), 120),
    "runtime config": (lambda client: client.runtime_config(), 120),
    "run sandbox": (lambda client: client.run_pod_sandbox(SANDBOX), 240),
    "stop sandbox": (lambda client: client.stop_pod_sandbox("s"), 120),
    "remove sandbox": (lambda client: client.remove_pod_sandbox("s"), 120),
    "sandbox status": (lambda client: client.pod_sandbox_status("s"), 120),
    "list sandboxes": (lambda client: client.list_pod_sandboxes(), 120),
    "list some sandboxes": (
        lambda client: client.list_pod_sandboxes(cri.PodSandboxFilter(id="s")),
        120,
    ),
    "list containers": (lambda client: client.list_containers(), 120),
    "list some containers": (
        lambda client: client.list_containers(cri.ContainerFilter(id="c")),
        120,
    ),
    "create": (lambda client: client.create_container("s", CONTAINER, SANDBOX), 120),
    "start": (lambda client: client.start_container("c"), 120),
    "stop": (lambda client: client.stop_container("c", 30), 150),
    "stop at once": (lambda client: client.stop_container("c", 0), 120),
    "stop in ages": (lambda client: client.stop_container("c", 2**63 - 1), 120 + 2**31 - 1),
    "remove": (lambda client: client.remove_container("c"), 120),
    "container status": (lambda client: client.container_status("c"), 120),
    "exec": (lambda client: client.exec_sync("c", ["true"], 7), 127),
    "reopen log": (lambda client: client.reopen_container_log("c"), 120),
    "list images": (lambda client: client.list_images(), 120),
    "image status": (lambda client: client.image_status(IMAGE), 120),
    "remove image": (lambda client: client.remove_image(IMAGE), 120),
    "image file systems": (lambda client: client.image_fs_info(), 120),
}


@pytest.mark.parametrize(("call", "seconds"), DEADLINES.values(), ids=DEADLINES)
async def test_each_call_has_its_deadline(
    call: Call, seconds: float, autojump_clock: MockClock
) -> None:
    started = trio.current_time()
    with pytest.raises(RpcError) as caught:
        await call(RuntimeClient(InProcess(HangingRuntime())))
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert trio.current_time() - started == pytest.approx(seconds)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.pull_image(IMAGE),
        lambda client: client.exec_sync("c", ["tail", "-f"], 0),
    ],
    ids=["pull", "exec without a timeout"],
)
async def test_what_may_take_forever_has_no_deadline(call: Call, autojump_clock: MockClock) -> None:
    with trio.move_on_after(10**9) as scope:
        await call(RuntimeClient(InProcess(HangingRuntime())))
    assert scope.cancelled_caught


async def test_the_request_timeout_scales_the_deadlines(autojump_clock: MockClock) -> None:
    started = trio.current_time()
    client = RuntimeClient(InProcess(HangingRuntime()), request_timeout_seconds=3)
    with pytest.raises(RpcError):
        await client.run_pod_sandbox(SANDBOX)
    assert trio.current_time() - started == pytest.approx(6)


async def test_requests_carry_the_arguments() -> None:
    runtime = RecordingRuntime(
        run_pod_sandbox=cri.RunPodSandboxResponse(pod_sandbox_id="s"),
        create_container=cri.CreateContainerResponse(container_id="c"),
        stop_container=cri.StopContainerResponse(),
        exec_sync=cri.ExecSyncResponse(stdout=b"out", exit_code=3),
        pull_image=cri.PullImageResponse(image_ref="sha256:1"),
        pod_sandbox_status=cri.PodSandboxStatusResponse(),
    )
    client = RuntimeClient(InProcess(runtime))
    auth = cri.AuthConfig(username="u", password="p")
    assert await client.run_pod_sandbox(SANDBOX, "kata") == "s"
    assert await client.create_container("s", CONTAINER, SANDBOX) == "c"
    await client.stop_container("c", 30)
    await client.stop_container("c", 2**63 - 1)
    assert (await client.exec_sync("c", ("sh", "-c"), 5)).exit_code == 3
    assert await client.pull_image(IMAGE, auth, SANDBOX) == "sha256:1"
    assert await client.pull_image(IMAGE) == "sha256:1"
    await client.pod_sandbox_status("s", verbose=True)
    assert runtime.requests == [
        cri.RunPodSandboxRequest(config=SANDBOX, runtime_handler="kata"),
        cri.CreateContainerRequest(pod_sandbox_id="s", config=CONTAINER, sandbox_config=SANDBOX),
        cri.StopContainerRequest(container_id="c", timeout=30),
        cri.StopContainerRequest(container_id="c", timeout=2**31 - 1),
        cri.ExecSyncRequest(container_id="c", cmd=["sh", "-c"], timeout=5),
        cri.PullImageRequest(image=IMAGE, auth=auth, sandbox_config=SANDBOX),
        cri.PullImageRequest(image=IMAGE),
        cri.PodSandboxStatusRequest(pod_sandbox_id="s", verbose=True),
    ]


@pytest.mark.parametrize(
    ("method", "answer", "call"),
    [
        ("run_pod_sandbox", cri.RunPodSandboxResponse(), DEADLINES["run sandbox"][0]),
        ("create_container", cri.CreateContainerResponse(), DEADLINES["create"][0]),
        ("pull_image", cri.PullImageResponse(), lambda client: client.pull_image(IMAGE)),
    ],
)
async def test_an_answer_without_the_id_that_was_asked_for_is_an_error(
    method: str, answer: Message, call: Call
) -> None:
    client = RuntimeClient(InProcess(RecordingRuntime(**{method: answer})))
    with pytest.raises(RpcError, match="without a") as caught:
        await call(client)
    assert caught.value.code is Code.INTERNAL


async def test_an_image_that_is_not_there_is_none() -> None:
    absent = InProcess(RecordingRuntime(image_status=cri.ImageStatusResponse()))
    assert await RuntimeClient(absent).image_status(IMAGE) is None
    there = cri.ImageStatusResponse(image=cri.Image(id="sha256:1"))
    transport = InProcess(RecordingRuntime(image_status=there))
    assert await RuntimeClient(transport).image_status(IMAGE) == cri.Image(id="sha256:1")


async def test_images_may_have_an_endpoint_of_their_own() -> None:
    runtime = RecordingRuntime(version=cri.VersionResponse(runtime_name="r"))
    images = RecordingRuntime(
        list_images=cri.ListImagesResponse(images=[cri.Image(id="sha256:1")]),
        image_fs_info=cri.ImageFsInfoResponse(),
        remove_image=cri.RemoveImageResponse(),
    )
    client = RuntimeClient(InProcess(runtime), InProcess(images))
    assert (await client.version()).runtime_name == "r"
    assert await client.list_images() == (cri.Image(id="sha256:1"),)
    await client.image_fs_info()
    await client.remove_image(IMAGE)
    assert len(runtime.requests) == 1
    assert len(images.requests) == 3


async def test_an_unfiltered_list_reuses_what_did_not_change() -> None:
    exited = cri.ContainerState(2)
    running = cri.ContainerState(1)
    first = cri.Container(id="a", state=running)
    second = cri.Container(id="b", state=running)
    answer = cri.ListContainersResponse(containers=[first, second])
    client = RuntimeClient(InProcess(RecordingRuntime(list_containers=answer)))
    before = await client.list_containers()
    answer.containers[1] = cri.Container(id="b", state=exited)
    after = await client.list_containers()
    assert before == (first, second)
    assert after == (first, cri.Container(id="b", state=exited))
    assert after[0] is before[0]


async def test_a_filtered_list_carries_the_filter_and_leaves_the_kept_list_alone() -> None:
    sandbox = cri.PodSandbox(id="s", labels={"io.kubernetes.pod.uid": "1"})
    answer = cri.ListPodSandboxResponse(items=[sandbox])
    runtime = RecordingRuntime(list_pod_sandbox=answer)
    client = RuntimeClient(InProcess(runtime))
    before = await client.list_pod_sandboxes()
    wanted = cri.PodSandboxFilter(label_selector={"io.kubernetes.pod.uid": "1"})
    assert await client.list_pod_sandboxes(wanted) == (sandbox,)
    assert runtime.requests == [
        cri.ListPodSandboxRequest(),
        cri.ListPodSandboxRequest(filter=wanted),
    ]
    assert (await client.list_pod_sandboxes())[0] is before[0]


async def test_events_come_until_the_runtime_goes_away() -> None:
    class Runtime:
        async def get_container_events(
            self, _: cri.GetEventsRequest
        ) -> AsyncIterator[cri.ContainerEventResponse]:
            yield cri.ContainerEventResponse(container_id="c")
            raise RpcError(Code.UNAVAILABLE, "gone")

    async with RuntimeClient(InProcess(Runtime())).container_events() as events:
        assert (await anext(events)).container_id == "c"
        with pytest.raises(RpcError) as caught:
            await anext(events)
    assert caught.value.code is Code.UNAVAILABLE


class KeepingRuntime:
    """Refuses to remove a container as long as its task is there."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.has_task = True

    async def remove_container(
        self, request: cri.RemoveContainerRequest
    ) -> cri.RemoveContainerResponse:
        if self.has_task:
            raise RpcError(self.code, f"cannot delete running task {request.container_id}")
        return cri.RemoveContainerResponse()

    async def delete(self, request: DeleteTaskRequest) -> DeleteResponse:
        assert request.container_id == "c"
        self.has_task = False
        return DeleteResponse()


async def test_a_task_that_keeps_a_container_from_going_is_deleted() -> None:
    runtime = KeepingRuntime(Code.FAILED_PRECONDITION)
    await RuntimeClient(InProcess(runtime), None, InProcess(runtime)).remove_container("c")
    assert not runtime.has_task


@pytest.mark.parametrize(
    ("code", "tasks"),
    [
        (Code.UNKNOWN, InProcess(KeepingRuntime(Code.UNKNOWN))),
        (Code.FAILED_PRECONDITION, InProcess(RecordingRuntime())),
        (Code.FAILED_PRECONDITION, None),
    ],
    ids=["refused for another reason", "no containerd", "no way to one"],
)
async def test_a_container_that_cannot_be_removed_says_why(
    code: Code, tasks: InProcess | None
) -> None:
    runtime = KeepingRuntime(code)
    client = RuntimeClient(InProcess(runtime), None, tasks)
    with pytest.raises(RpcError, match="cannot delete running task c") as caught:
        await client.remove_container("c")
    assert caught.value.code is code
    assert runtime.has_task


MEBI = 1 << 20
MEBIBYTE = "x" * MEBI


class CrowdedRuntime:
    """Has a container of a mebibyte in each sandbox; sends no list of more than 16 MiB.

    The sandboxes behind number `ready` have stopped; one more each time when a part is asked for,
    if it `stops`.
    """

    def __init__(self, count: int, code: Code = Code.RESOURCE_EXHAUSTED, ready: int = 10) -> None:
        self.count = count
        self.whole_lists = 0
        self.ready = ready
        self.sandboxes_are_large = False
        self.stops = False
        self._code = code

    async def list_pod_sandbox(
        self, request: cri.ListPodSandboxRequest
    ) -> cri.ListPodSandboxResponse:
        wanted: Collection[int] = (0, 1)
        if is_present(request.filter.state):
            wanted = (request.filter.state.state,)
            self.ready -= self.stops
        filling = MEBIBYTE * self.sandboxes_are_large
        states = [int(number > self.ready) for number in range(self.count)]
        return cri.ListPodSandboxResponse(
            items=self._sent(
                cri.PodSandbox(id_, state=cri.PodSandboxState(state), runtime_handler=filling)
                for id_, state in zip(self.ids, states, strict=True)
                if state in wanted
            )
        )

    async def list_containers(
        self, request: cri.ListContainersRequest
    ) -> cri.ListContainersResponse:
        return cri.ListContainersResponse(
            containers=self._sent(
                cri.Container(id=f"c{id_}", pod_sandbox_id=id_, image_ref=MEBIBYTE)
                for id_ in self._wanted(request.filter.pod_sandbox_id)
            )
        )

    async def list_container_stats(
        self, request: cri.ListContainerStatsRequest
    ) -> cri.ListContainerStatsResponse:
        return cri.ListContainerStatsResponse(
            stats=self._sent(
                cri.ContainerStats(cri.ContainerAttributes(id_, annotations={"a": MEBIBYTE}))
                for id_ in self._wanted(request.filter.pod_sandbox_id)
            )
        )

    async def list_pod_sandbox_stats(
        self, request: cri.ListPodSandboxStatsRequest
    ) -> cri.ListPodSandboxStatsResponse:
        return cri.ListPodSandboxStatsResponse(
            stats=self._sent(
                cri.PodSandboxStats(cri.PodSandboxAttributes(id_, annotations={"a": MEBIBYTE}))
                for id_ in self._wanted(request.filter.id)
            )
        )

    def _wanted(self, sandbox_id: str) -> list[str]:
        self.whole_lists += not sandbox_id
        return [id_ for id_ in self.ids if sandbox_id in ("", id_)]

    def _sent(self, entries: Iterable[M]) -> list[M]:
        with making_test_data():
            sent = list(entries)
            size_bytes = sum(len(encode(entry)) for entry in sent)
        if size_bytes > 16 * MEBI:
            raise RpcError(self._code, "trying to send message larger than max")
        return sent

    @property
    def ids(self) -> list[str]:
        return [f"{number:064x}" for number in range(self.count)]


async def test_a_list_of_sandboxes_that_is_too_long_is_asked_for_state_by_state() -> None:
    runtime = CrowdedRuntime(20)
    runtime.sandboxes_are_large = True
    client = RuntimeClient(InProcess(runtime))
    first = await client.list_pod_sandboxes()
    assert [each.id for each in first] == runtime.ids
    assert [each.state.value for each in first] == [0] * 11 + [1] * 9
    assert await client.list_pod_sandboxes() is first


async def test_a_sandbox_that_stops_between_two_parts_of_the_list_is_listed_once() -> None:
    runtime = CrowdedRuntime(20)
    runtime.sandboxes_are_large = runtime.stops = True
    found = await RuntimeClient(InProcess(runtime)).list_pod_sandboxes()
    assert [each.id for each in found] == runtime.ids
    assert [each.state.value for each in found] == [0] * 9 + [1] * 11


async def test_statistics_that_are_too_long_are_asked_for_sandbox_by_sandbox() -> None:
    runtime = CrowdedRuntime(20)
    client = RuntimeClient(InProcess(runtime))
    with capture_logs() as logs:
        for _ in range(2):
            containers = await client.list_container_stats()
            assert {each.attributes.id for each in containers} == set(runtime.ids)
            sandboxes = await client.list_pod_sandbox_stats()
            assert {each.attributes.id for each in sandboxes} == set(runtime.ids)
    assert runtime.whole_lists == 2, "they were still too long"
    assert [entry["event"] for entry in logs] == [
        "statistics of containers are too long, asking sandbox by sandbox",
        "statistics of sandboxes are too long, asking one by one",
    ]


async def test_a_list_of_containers_that_is_too_long_is_asked_for_sandbox_by_sandbox() -> None:
    runtime = CrowdedRuntime(20)
    client = RuntimeClient(InProcess(runtime))
    with capture_logs() as logs:
        first = await client.list_containers()
        assert await client.list_containers() is first
        assert {container.pod_sandbox_id for container in first} == set(runtime.ids)
        assert runtime.whole_lists == 1, "it was still too long"
        runtime.count = 4
        assert len(await client.list_containers()) == 4
        assert len(await client.list_containers()) == 4
        assert runtime.whole_lists == 2
    assert [entry["event"] for entry in logs] == [
        "list of containers is too long, asking sandbox by sandbox"
    ]


async def test_a_list_of_containers_that_fails_for_another_reason_is_not_asked_for_in_parts() -> (
    None
):
    runtime = CrowdedRuntime(20, Code.UNKNOWN)
    with pytest.raises(RpcError, match="larger than max"):
        await RuntimeClient(InProcess(runtime)).list_containers()
    assert runtime.whole_lists == 1


class SendingTransport(InProcess):
    """Encodes what it is to send, as any transport, and sends it to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        self.sent.append(encode(request))
        await trio.lowlevel.checkpoint()
        return bytes(cri.CreateContainerResponse(container_id="c-1"))


async def test_a_container_with_many_variables_is_encoded_beside_the_event_loop() -> None:
    with making_test_data():
        variables = [cri.KeyValue(key=f"K{n}", value=b"v") for n in range(100_000)]
        config = cri.ContainerConfig(envs=variables)
        whole = cri.CreateContainerRequest("s-1", config, SANDBOX)
        expected = bytes(whole)
    transport = SendingTransport()
    assert await RuntimeClient(transport).create_container("s-1", config, SANDBOX) == "c-1"
    assert transport.sent == [expected]
