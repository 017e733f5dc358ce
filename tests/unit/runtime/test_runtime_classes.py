"""From the class that a pod names to the handler that its sandbox is made with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.apiserver.server import ApiServer
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import RUNTIME_CLASSES, ObjectMeta, Pod, PodSpec, RuntimeClass
from trio_kubelet.runtime.handlers import RuntimeClasses

PLAIN, SANDBOXED = Pod(), Pod(spec=PodSpec(runtime_class_name="gvisor"))


def make_class(handler: str) -> RuntimeClass:
    return RuntimeClass(metadata=ObjectMeta(name="gvisor"), handler=handler)


@asynccontextmanager
async def following(server: ApiServer) -> AsyncIterator[RuntimeClasses]:
    classes = RuntimeClasses(server.client())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(classes.run)
        yield classes
        nursery.cancel_scope.cancel()


async def test_a_class_has_its_handler_as_long_as_it_is_there(autojump_clock: MockClock) -> None:
    server = ApiServer()
    server.create(RUNTIME_CLASSES, make_class("runsc"))
    async with following(server) as classes:
        assert await classes.handler(PLAIN) == ""
        assert await classes.handler(SANDBOXED) == "runsc"
        server.update(RUNTIME_CLASSES, make_class("runsc2"))
        await wait_all_tasks_blocked()
        assert await classes.handler(SANDBOXED) == "runsc2"
        server.delete(RUNTIME_CLASSES, "gvisor")
        await wait_all_tasks_blocked()
        with pytest.raises(ConfigError) as caught:
            await classes.handler(SANDBOXED)
        assert str(caught.value) == 'runtimeclass.node.k8s.io "gvisor" not found'


async def test_while_the_server_is_away_only_pods_with_a_class_wait(
    autojump_clock: MockClock,
) -> None:
    server = ApiServer()
    server.create(RUNTIME_CLASSES, make_class("runsc"))
    server.go_away()
    async with following(server) as classes:
        began = trio.current_time()
        assert await classes.handler(PLAIN) == ""
        assert trio.current_time() == began
        with pytest.raises(ConfigError, match="failed to lookup RuntimeClass gvisor"):
            await classes.handler(SANDBOXED)
        server.come_back()
        with trio.fail_after(60):
            while not await knows(classes):
                pass


async def knows(classes: RuntimeClasses) -> bool:
    """Whether the class is known, after the wait for the first list."""
    try:
        return await classes.handler(SANDBOXED) == "runsc"
    except ConfigError:
        return False
