"""The CPUs of containers that run follow what the resource managers say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import trio
from attrs import define, field
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.resource_managers.machines import machine, managers_of, no_managers
from tests.unit.resource_managers.pods import a_pod
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.lifecycle.cpuset_reconciler import CpusetReconciler
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

PERIOD_SECONDS = 10.0


@define
class Client:
    """Remembers which container was told which CPUs; `errors` are raised first."""

    told: list[tuple[str, str]] = field(factory=list)
    errors: list[RpcError] = field(factory=list)

    async def update_container_resources(
        self, container_id: str, resources: cri.LinuxContainerResources
    ) -> None:
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop()
        assert resources == cri.LinuxContainerResources(cpuset_cpus=resources.cpuset_cpus)
        self.told.append((container_id, resources.cpuset_cpus))

    def heard(self) -> list[tuple[str, str]]:
        heard, self.told = sorted(self.told), []
        return heard


@define
class Node:
    managers: ResourceManagers
    client: Client
    cache: RuntimeCache
    reconciler: CpusetReconciler

    def show(self, uid: str, *names: str, state: ObservedState = ObservedState.RUNNING) -> None:
        """The runtime has these containers of a pod."""
        self.cache.put(
            ObservedPod(
                uid=uid,
                name=uid,
                namespace="ns",
                observed_at=trio.current_time(),
                containers=tuple(
                    ObservedContainer(id=f"{uid}-{name}", name=name, sandbox_id="s", state=state)
                    for name in names
                ),
            )
        )

    def reserve(self, uid: str, cpu: str) -> None:
        assert self.managers.reserve(a_pod(uid, cpu), lambda _uid: False) is None


def static_managers() -> ResourceManagers:
    policy = static_cpu_policy(machine(), CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0)
    return managers_of(policy)


@asynccontextmanager
async def running(managers: ResourceManagers | None = None) -> AsyncIterator[Node]:
    managers = managers or static_managers()
    client, cache, health = Client(), RuntimeCache(), RuntimeHealth()
    health.update(RuntimeState(up=True, network_ready=True))
    reconciler = CpusetReconciler(
        managers, cast("RuntimeClient", client), cache, health, PERIOD_SECONDS
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reconciler.run)
        await wait_all_tasks_blocked()
        yield Node(managers, client, cache, reconciler)
        nursery.cancel_scope.cancel()


async def test_containers_that_were_made_with_their_cpus_are_told_nothing(
    mock_clock: MockClock,
) -> None:
    async with running() as at:
        at.reserve("u", "2")
        at.reconciler.made("u-c0", "1,5")
        at.show("u", "c0")
        await wait_all_tasks_blocked()
        assert at.client.heard() == []


async def test_those_that_share_the_rest_are_told_at_once_when_it_changes(
    mock_clock: MockClock,
) -> None:
    async with running() as at:
        at.reconciler.made("other-c0", "0-7")
        at.show("other", "c0")
        at.reserve("u", "2")
        await wait_all_tasks_blocked()
        assert at.client.heard() == [("other-c0", "0,2-4,6-7")]
        at.managers.release("u")
        await wait_all_tasks_blocked()
        assert at.client.heard() == [("other-c0", "0-7")]


async def test_a_container_that_was_made_while_cpus_were_given_away_is_told_when_it_runs(
    mock_clock: MockClock,
) -> None:
    async with running() as at:
        at.reconciler.made("other-c0", "0-7")
        at.show("other", "c0", state=ObservedState.CREATED)
        at.reserve("u", "2")
        await wait_all_tasks_blocked()
        assert at.client.heard() == []
        at.show("other", "c0")
        await wait_all_tasks_blocked()
        assert at.client.heard() == [("other-c0", "0,2-4,6-7")]


async def test_after_a_restart_of_the_agent_all_are_told_once(mock_clock: MockClock) -> None:
    managers = static_managers()
    async with running(managers) as at:
        at.reserve("u", "2")
        at.show("u", "c0", "c1")
        at.show("other", "c0")
        await wait_all_tasks_blocked()
        assert at.client.heard() == [
            ("other-c0", "0,2-4,6-7"),
            ("u-c0", "1,5"),
            ("u-c1", "0,2-4,6-7"),
        ]
        mock_clock.jump(PERIOD_SECONDS)
        await wait_all_tasks_blocked()
        assert at.client.heard() == []


async def test_what_fails_is_tried_again_each_period_and_said_in_the_log_once(
    mock_clock: MockClock,
) -> None:
    async with running() as at:
        at.client.errors += [RpcError(Code.UNAVAILABLE, "busy")] * 2
        with capture_logs() as logs:
            at.show("other", "c0")
            await wait_all_tasks_blocked()
            mock_clock.jump(PERIOD_SECONDS)
            await wait_all_tasks_blocked()
        assert [each["event"] for each in logs] == ["container CPUs not changed, will retry"]
        assert at.client.heard() == []
        mock_clock.jump(PERIOD_SECONDS)
        await wait_all_tasks_blocked()
        assert at.client.heard() == [("other-c0", "0-7")]


async def test_a_container_that_has_gone_is_no_failure_and_is_forgotten(
    mock_clock: MockClock,
) -> None:
    async with running() as at:
        at.client.errors.append(RpcError(Code.NOT_FOUND, "gone"))
        with capture_logs() as logs:
            at.show("other", "c0")
            await wait_all_tasks_blocked()
        assert logs == []
        at.show("other", "c1")
        at.show("other", "c0")
        await wait_all_tasks_blocked()
        assert ("other-c0", "0-7") in at.client.heard()


async def test_where_nothing_is_assigned_nobody_is_told_anything(mock_clock: MockClock) -> None:
    async with running(no_managers()) as at:
        at.reconciler.made("other-c0", "")
        at.show("other", "c0")
        mock_clock.jump(PERIOD_SECONDS)
        await wait_all_tasks_blocked()
        assert at.client.heard() == []
