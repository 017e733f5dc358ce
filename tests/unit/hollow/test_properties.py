"""Whatever is called in whatever order, the runtime's lists and its events tell one story."""

from collections.abc import Sequence
from contextlib import suppress

import trio
import trio.testing
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hollow.conftest import Simulated, simulate
from trio_kubelet.hollow import Behaviour, Invocation
from trio_kubelet.rpc import InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

NAMES = ("a", "b")
BEHAVIOURS = {
    "short": Behaviour(run_seconds=3),
    "long": Behaviour(obeys_term=5),
    "stubborn": Behaviour(obeys_term=None),
    "broken": Behaviour(start_error="no such file"),
}
ACTIONS = st.tuples(
    st.sampled_from(["run", "stop", "remove", "create", "start", "end", "delete", "wait", "fail"]),
    st.sampled_from(NAMES),
    st.sampled_from(sorted(BEHAVIOURS)),
)

# One pod with all kinds of containers is there from the start, so that few actions go nowhere.
PROLOGUE = (("run", "a", ""), *(("create", "a", name) for name in BEHAVIOURS))


def behaviour(invocation: Invocation) -> Behaviour:
    return BEHAVIOURS[invocation.name]


@define
class Story:
    """What the events said: the last kind of event of each sandbox and container."""

    last: dict[str, str] = field(factory=dict)

    async def listen(self, transport: InProcess) -> None:
        stream = transport.stream(
            cri.RuntimeServiceStub.get_container_events, cri.GetEventsRequest()
        )
        async with stream as events:
            async for event in events:
                kind = cri.ContainerEventType(event.container_event_type).name or ""
                self.last[event.container_id] = kind


async def act(node: Simulated, action: str, pod_name: str, container_name: str) -> None:
    """Do one thing, with the newest pod and container of those names, if there are any."""
    runtime = node.runtime
    pods = [s.id for s in runtime.sandboxes if s.config.metadata.name == pod_name]
    containers = [c.id for c in runtime.containers if c.config.metadata.name == container_name]
    pod, container = [*pods, "none"][0], [*containers, "none"][0]
    if action == "run":
        await node.run_pod(pod_name)
    elif action == "stop":
        await runtime.stop_pod_sandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    elif action == "remove":
        await node.remove_pod(pod)
    elif action == "create":
        await node.create(pod, name=container_name, of=pod_name)
    elif action == "start":
        await node.start(container)
    elif action == "end":
        await node.stop(container, 4)
    elif action == "delete":
        await runtime.remove_container(cri.RemoveContainerRequest(container_id=container))
    elif action == "fail":
        runtime.sandboxes.fail(pod)
    await trio.sleep(1)


EXPECTED = {
    cri.ContainerState.CONTAINER_CREATED: {"CONTAINER_CREATED_EVENT"},
    cri.ContainerState.CONTAINER_RUNNING: {"CONTAINER_STARTED_EVENT"},
    # A start that failed is not told of.
    cri.ContainerState.CONTAINER_EXITED: {"CONTAINER_STOPPED_EVENT", "CONTAINER_CREATED_EVENT"},
}


async def check(node: Simulated, story: Story) -> None:
    await trio.testing.wait_all_tasks_blocked()
    sandboxes = list(node.runtime.sandboxes)
    containers = await node.containers()
    listed = set(await node.pods())
    assert {container.pod_sandbox_id for container in containers} <= listed
    addresses = [sandbox.ip for sandbox in sandboxes if sandbox.ip]
    assert len(addresses) == len(set(addresses))
    assert all(sandbox.ip for sandbox in sandboxes if sandbox.ready)
    for container in containers:
        assert story.last[container.id] in EXPECTED[container.state]
    for sandbox in sandboxes:
        kind = "CONTAINER_STARTED_EVENT" if sandbox.ready else "CONTAINER_STOPPED_EVENT"
        assert story.last[sandbox.id] == kind
    alive = {key for key, kind in story.last.items() if kind != "CONTAINER_DELETED_EVENT"}
    assert alive == listed | {container.id for container in containers}


async def tell(actions: Sequence[tuple[str, str, str]]) -> None:
    async with simulate(behaviours=behaviour) as node, trio.open_nursery() as nursery:
        story = Story()
        nursery.start_soon(story.listen, InProcess(node.runtime))
        await trio.testing.wait_all_tasks_blocked()
        for action in (*PROLOGUE, *actions):
            with suppress(RpcError):
                await act(node, *action)
            await check(node, story)
        nursery.cancel_scope.cancel()


@given(st.lists(ACTIONS, max_size=25))
def test_lists_and_events_agree_after_every_call(actions: list[tuple[str, str, str]]) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0.0)
    trio.run(tell, actions, clock=clock)
