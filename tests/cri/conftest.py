"""Conformance: the same expectations of the hollow runtime, in process and over a socket, and of
containerd 2.1. What the tests say was seen on containerd; the hollow runtime has to follow."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from lab import UnavailableError, host
from lab.images import BUSYBOX, BUSYBOX_AS_USER
from tests.containerds import Containerds
from tests.cri.node import CGROUP_PARENT, MISSING_PROGRAM, Node
from tests.missing import do_without
from trio_kubelet.hollow import (
    Behaviour,
    HollowOptions,
    HollowRegistry,
    Invocation,
    RemoteImage,
    behaviour_of,
    open_hollow_runtime,
)
from trio_kubelet.rpc import Channel, InProcess, open_rpc_loop, serve
from trio_kubelet.tasks.clock import SystemClock


def behaviour_with_missing_program(invocation: Invocation) -> Behaviour:
    """Tell the hollow runtime, which sees into no image, what is not in there."""
    if invocation.command == (MISSING_PROGRAM,):
        return Behaviour(start_error=f'exec: "{MISSING_PROGRAM}": no such file or directory')
    return behaviour_of(invocation)


OPTIONS = HollowOptions(
    behaviours=behaviour_with_missing_program,
    write_files=True,
    images=(BUSYBOX, BUSYBOX_AS_USER),
    registry=HollowRegistry(
        images={BUSYBOX_AS_USER: RemoteImage(uid=1000, gid=1000, groups=(2000,))},
        unreachable=frozenset({"127.0.0.1:1"}),
    ),
)


@pytest.fixture(scope="session")
def containerd_endpoint(containerds: Containerds) -> Iterator[str]:
    """A containerd 2.1 of the lab's own."""
    if obstacles := host.obstacles():
        do_without(f"containers cannot run here: {'; '.join(obstacles)}")
    try:
        yield containerds.running("2.1").endpoint
    except UnavailableError as reason:
        do_without(str(reason))
    host.remove_cgroups(CGROUP_PARENT)


@pytest.fixture(
    params=["hollow", "hollow-socket", pytest.param("containerd", marks=pytest.mark.integration)]
)
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the runtime listens; empty for the hollow one in this process."""
    if request.param == "hollow":
        return ""
    if request.param == "hollow-socket":
        return f"unix://{tmp_path}/hollow.sock"
    found: str = request.getfixturevalue("containerd_endpoint")
    return found


@pytest.fixture
async def node(endpoint: str, tmp_path: Path) -> AsyncIterator[Node]:
    """The runtime under test; what a test left running is removed."""
    async with AsyncExitStack() as stack:
        run = secrets.token_hex(4)
        if not endpoint:
            runtime = await stack.enter_async_context(open_hollow_runtime(SystemClock(), OPTIONS))
            yield Node(InProcess(runtime), tmp_path, run)
            return
        await stack.enter_async_context(open_rpc_loop())
        if endpoint.endswith("hollow.sock"):
            runtime = await stack.enter_async_context(open_hollow_runtime(SystemClock(), OPTIONS))
            nursery = await stack.enter_async_context(trio.open_nursery())
            await nursery.start(serve, [runtime], endpoint.removeprefix("unix://"))
            stack.callback(nursery.cancel_scope.cancel)
        node = Node(Channel(endpoint), tmp_path, run)
        yield node
        await node.clean_up()
