"""Brings the running containers of a pod, and its cgroup, to what the pod is allocated.

    for memory, then for cpu:  pod's limit, if it grows → containers → pod's limit, if it shrinks

So at no moment is a container allowed more than its pod. The two resources go apart: what is in the
way of one does not hold up the other, and each container is told only of what changes. No memory
limit is set below what is used: the kernel would kill for it. Nothing is done before the allocation
is on the disk and the runtime, which may refuse the pod's new sums, was told of them; what was done
is recorded after it. Each step may be made again, so an agent that is killed between two of them
goes on with the next plan.
"""

from operator import attrgetter

import trio
from attrs import frozen

from trio_kubelet.errors import PreparationError, aggregated
from trio_kubelet.k8s import Pod
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.resources import (
    resource_update,
    sandbox_overhead,
    sandbox_resources,
)
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.resize_plan import RESIZABLE, ContainerUpdate, ResizePlan
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import ObservedSandbox
from trio_kubelet.tasks.callbacks import Callbacks

NOT_RECORDED = "the allocation of the pod cannot be written to the disk of the node"


@frozen
class ResizeError(Exception):
    """A resize did not work now: the message of the condition PodResizeInProgress."""

    message: str


@frozen(kw_only=True)
class PodResizer:
    """Resizes pods. Holds no state of any of them.

    `on_try` is called with the seconds that a try took, and whether it worked.
    """

    _client: RuntimeClient
    _cgroups: PodCgroups | NoCgroups
    _allocations: Allocations
    _node: NodeFacts
    _on_try: Callbacks[[float, bool]]

    async def resize(self, pod: Pod, plan: ResizePlan, sandbox: ObservedSandbox | None) -> None:
        """Carry out a plan for a pod as it is allocated. Raises ResizeError.

        `sandbox` is the one that it runs in, None if that has gone. Cancelled, it leaves what was
        done; made again, it does the rest.
        """
        began_at, worked = trio.current_time(), False
        try:
            problems = await self._resize_all(pod, plan, sandbox)
            worked = not problems
        finally:
            self._on_try.call(trio.current_time() - began_at, worked)
        if problems:
            raise ResizeError(aggregated(problems))

    async def without_vain_restarts(
        self, pod: Pod, plan: ResizePlan, sandbox: ObservedSandbox | None
    ) -> ResizePlan:
        """Return the plan, by which no container stops for what `resize` would refuse.

        That is an allocation that is not on the disk, or that the runtime does not want.
        """
        if not await self._allocations.keep():
            return plan.without_restarts
        if plan.restart and await self._refusal(pod, sandbox):
            return plan.without_restarts
        return plan

    async def expect_start(self, pod: Pod, name: str) -> None:
        """Record that a container is made with what the pod is allocated.

        Before it is: recorded later, a killed agent would leave a container that seems to have
        its former resources still, and is restarted for that once more.
        """
        self._allocations.actuate(pod, (name,))
        # A disk that is full keeps no container from starting; it may restart once too often then.
        await self._allocations.keep()

    async def _resize_all(
        self, pod: Pod, plan: ResizePlan, sandbox: ObservedSandbox | None
    ) -> list[str]:
        """Change what can be changed; return what was in the way of the rest."""
        if not await self._allocations.keep():
            return [NOT_RECORDED]
        refusal = await self._refusal(pod, sandbox)
        if refusal:
            return [refusal]
        tried = [await self._resize_one(pod, plan, resource) for resource in RESIZABLE]
        problems = [problem for problem in tried if problem]
        if not problems:
            # A container that is about to restart is recorded when it does.
            self._allocations.actuate(pod, plan.idle if plan.restart else None)
        # One that does not get to the disk does no harm: a later agent resizes again, to the same.
        await self._allocations.keep()
        return problems

    async def _refusal(self, pod: Pod, sandbox: ObservedSandbox | None) -> str:
        """Tell the runtime of the pod's new sums; return why it refuses them, or ""."""
        if sandbox is None:
            return ""
        resources, overhead = sandbox_resources(pod, self._node), sandbox_overhead(pod, self._node)
        try:
            await self._client.update_pod_sandbox_resources(sandbox.id, resources, overhead)
        except RpcError as error:
            return "" if error.code in (Code.UNIMPLEMENTED, Code.NOT_FOUND) else error.message
        return ""

    async def _resize_one(self, pod: Pod, plan: ResizePlan, resource: str) -> str:
        """Change one resource of the pod and its containers; return what was in the way, or ""."""
        updates = [each for each in plan.update if resource in each.changed]
        try:
            if resource == "memory":
                await self._check_memory(pod, plan)
            await self._cgroups.grow(pod, resource)
            for update in sorted(updates, key=attrgetter("grows")):
                await self._update(pod, update, resource)
            await self._cgroups.finish_resize(pod, resource)
        except (RpcError, PreparationError, ResizeError) as error:
            return error.message
        return ""

    async def _check_memory(self, pod: Pod, plan: ResizePlan) -> None:
        """Compare memory limits that are to be lowered with what is used now."""
        problems = []
        decrease = await self._cgroups.memory_limit_decrease(pod)
        if decrease is not None and decrease.usage_bytes >= decrease.limit_bytes:
            problems.append(_below_usage("pod", decrease.limit_bytes, decrease.usage_bytes))
        for update in plan.update:
            limit = update.lowered_memory_limit_bytes
            if limit is None:
                continue
            usage = await self._memory_usage_bytes(update.instance.id)
            if usage >= limit:
                what = f'container "{update.container.name}"'
                problems.append(_below_usage(what, limit, usage))
        if problems:
            raise ResizeError(f"cannot decrease memory limits: {aggregated(problems)}")

    async def _memory_usage_bytes(self, container_id: str) -> int:
        """The memory that a container uses, with its page cache; 0 if it has gone."""
        try:
            stats = await self._client.container_stats(container_id)
        except RpcError as error:
            if error.code is Code.NOT_FOUND:
                return 0
            raise
        return stats.memory.usage_bytes.value or stats.memory.working_set_bytes.value

    async def _update(self, pod: Pod, update: ContainerUpdate, resource: str) -> None:
        """Change a container. One that has gone meanwhile is left for the next plan to find."""
        resources = resource_update(pod, update.container, self._node, resource)
        try:
            await self._client.update_container_resources(update.instance.id, resources)
        except RpcError as error:
            if error.code is Code.NOT_FOUND:
                return
            raise
        self._allocations.actuate(pod, (update.container.name,), resource)


def _below_usage(what: str, limit_bytes: int, usage_bytes: int) -> str:
    return (
        f"attempting to set {what} memory limit ({limit_bytes}) below current usage ({usage_bytes})"
    )
