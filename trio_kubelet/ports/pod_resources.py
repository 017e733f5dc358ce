"""The pod resources socket: monitoring agents ask which container has which devices, CPUs, memory.

Whoever may open the socket is root. As on the Go kubelet, calls over a rate are refused, and pods
that have ended are not listed. CPUs are those that a container has for itself, or a pod as one
part. Devices of claims are those of the requests that a container names, once their drivers have
prepared them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import betterproto
import trio
from attrs import frozen

from trio_kubelet.devices.checkpoint import DeviceRecord
from trio_kubelet.devices.choice import by_device
from trio_kubelet.devices.client import Devices
from trio_kubelet.dra import ClaimRecords
from trio_kubelet.dra.checkpoint import ClaimRecord, PreparedDevice
from trio_kubelet.dra.claims import ClaimProblem, claim_names, container_uses, devices_for
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.k8s.client.rate_limit import RateLimit, TokenBucket
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.ports.root_socket import serve_root
from trio_kubelet.resource_managers.cpu_sets import CpuSet
from trio_kubelet.resource_managers.hints import nodes_in
from trio_kubelet.resource_managers.managers import ResourceManagers
from trio_kubelet.resource_managers.memory_draft import (
    ContainerBlocks,
    MemoryBlock,
    allocatable_blocks,
)
from trio_kubelet.rpc import Code, RpcError, ServerLimits, encode_ahead, present
from trio_kubelet.rpc.stubs import v1 as wire
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.threads import run_in_thread

SOCKET = "kubelet.sock"
RATE = RateLimit(qps=100.0, burst=10)
MAX_WAITING = 10
"""Calls that wait for the thread which makes answers: one of 16,384 devices takes 0.3 s of it."""
MAX_SHOWN = 256

_Claims = Mapping[tuple[str, str], ClaimRecord]
"""By namespace and name."""

M = TypeVar("M", bound=betterproto.Message)


@frozen
class _PodResources:
    """A pod, and what is recorded of it; CPUs and blocks of memory are by container.

    `whole_cpus` and `whole_memory` are what the pod has as one part.
    """

    pod: Pod
    devices: Collection[DeviceRecord]
    cpus: Mapping[str, CpuSet]
    memory: ContainerBlocks
    whole_cpus: CpuSet
    whole_memory: tuple[MemoryBlock, ...]


class PodResourcesLister:
    """The service PodResourcesLister, v1.

    `claims` are those of the node, None if they are not told of. `active_pods` are those that hold
    resources, `pod` finds one by namespace and name. `on_request` and `on_error` are called with
    the kind of a call: list, get, get_allocatable.
    """

    def __init__(
        self,
        folder: Path,
        managers: ResourceManagers,
        claims: ClaimRecords | None,
        active_pods: Callable[[], Iterable[Pod]],
        pod: Callable[[str, str], Pod | None],
    ) -> None:
        self.on_request: Callbacks[[str]] = Callbacks()
        self.on_error: Callbacks[[str]] = Callbacks()
        self._folder = folder
        self._managers = managers
        self._claims = claims
        self._active_pods = active_pods
        self._pod = pod
        self._bucket = TokenBucket.of(RATE, 0.0)
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Serve the socket until cancelled; where that fails it is tried again."""
        path, contract = self._folder / SOCKET, wire.PodResourcesListerBase
        await serve_root(self, path, contract, ServerLimits(), what="pod resources")

    async def list(self, _: wire.ListPodResourcesRequest) -> wire.ListPodResourcesResponse:
        """Tell of all pods that hold resources. Raises RpcError."""
        self._admit("list")
        pods, claims = [self._found(pod) for pod in self._active_pods()], self._known_claims()
        return await self._built(
            lambda: wire.ListPodResourcesResponse(
                pod_resources=[_resources(pod, claims) for pod in pods]
            )
        )

    async def get(self, request: wire.GetPodResourcesRequest) -> wire.GetPodResourcesResponse:
        """Tell of one pod. Raises RpcError."""
        self._admit("get")
        pod = self._pod(request.pod_namespace, request.pod_name)
        if pod is None:
            self.on_error.call("get")
            name, namespace = request.pod_name[:MAX_SHOWN], request.pod_namespace[:MAX_SHOWN]
            raise RpcError(Code.UNKNOWN, f"pod {name} in namespace {namespace} not found")
        found, claims = self._found(pod), self._known_claims()
        return await self._built(
            lambda: wire.GetPodResourcesResponse(pod_resources=_resources(found, claims))
        )

    async def get_allocatable_resources(
        self, _: wire.AllocatableResourcesRequest
    ) -> wire.AllocatableResourcesResponse:
        """Tell of all that pods may have, whoever has it. Raises RpcError."""
        self._admit("get_allocatable")
        managers = self._managers
        served = [(each.name, each.devices) for each in managers.devices.plugins.served()]
        cpus, memory = managers.cpus.policy, managers.memory.policy
        return await self._built(
            lambda: wire.AllocatableResourcesResponse(
                devices=[
                    entry for name, devices in served for entry in _container_devices(name, devices)
                ],
                cpu_ids=sorted(cpus.allocatable) if cpus is not None else [],
                memory=_memory(allocatable_blocks(memory) if memory is not None else ()),
            )
        )

    def _admit(self, kind: str) -> None:
        """Count a call. Raises RpcError for one that comes too fast."""
        is_full = self._limiter.statistics().tasks_waiting >= MAX_WAITING
        if is_full or self._bucket.take(trio.current_time()) > 0:
            if not is_full:
                self._bucket.give_back()
            raise RpcError(Code.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self.on_request.call(kind)

    def _found(self, pod: Pod) -> _PodResources:
        uid, managers = pod.metadata.uid, self._managers
        return _PodResources(
            pod,
            managers.devices.records.of_pod(uid),
            managers.cpus.cpus_of_pod(uid),
            managers.memory.blocks.get(uid, {}),
            managers.cpus.whole_of(uid),
            managers.memory.whole_of(uid),
        )

    def _known_claims(self) -> _Claims:
        records = self._claims.all() if self._claims is not None else ()
        return {(each.namespace, each.name): each for each in records}

    async def _built(self, make: Callable[[], M]) -> M:
        """Make an answer in a thread, one at a time: many devices are many messages."""

        def build() -> M:
            message = make()
            encode_ahead(message)
            return message

        return await run_in_thread(build, limiter=self._limiter)


def _resources(found: _PodResources, claims: _Claims) -> wire.PodResources:
    """Tell of a pod's containers; of init containers only of those that run on."""
    pod = found.pod
    devices: dict[str, list[wire.ContainerDevices]] = {}
    for record in found.devices:
        if not record.is_reserved:
            entries = _container_devices(record.resource, by_device(record))
            devices.setdefault(record.container, []).extend(entries)
    sidecars = (each for each in pod.spec.init_containers if is_sidecar(each))
    return wire.PodResources(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        containers=[
            wire.ContainerResources(
                name=each.name,
                devices=devices.get(each.name, []),
                cpu_ids=sorted(found.cpus.get(each.name, ())),
                memory=_memory(found.memory.get(each.name, ())),
                dynamic_resources=list(_dynamic_resources(pod, each, claims)) if claims else [],
            )
            for each in (*sidecars, *pod.spec.containers)
        ],
        cpu_ids=sorted(found.whole_cpus),
        memory=_memory(found.whole_memory),
    )


def _dynamic_resources(
    pod: Pod, container: Container, claims: _Claims
) -> Iterator[wire.DynamicResource]:
    """One entry for each claim of a container that is prepared."""
    try:
        names = claim_names(pod)
    except ClaimProblem:
        return
    requests: dict[str, list[str]] = {}
    for use in container_uses(pod, container):
        if (name := names.get(use.place)) is not None:
            requests.setdefault(name, []).append(use.request)
    for name, wanted in requests.items():
        record = claims.get((pod.metadata.namespace, name))
        if record is not None and pod.metadata.uid in record.pods and record.is_answered:
            yield wire.DynamicResource(
                claim_name=name,
                claim_namespace=record.namespace,
                claim_resources=[_claimed(*each) for each in devices_for(record, wanted)],
            )


def _claimed(driver: str, device: PreparedDevice) -> wire.ClaimResource:
    return wire.ClaimResource(
        cdi_devices=[wire.CdiDevice(name=each) for each in device.cdi_ids],
        driver_name=driver,
        pool_name=device.pool,
        device_name=device.device,
        share_id=device.share_id,
    )


def _memory(blocks: Iterable[MemoryBlock]) -> list[wire.ContainerMemory]:
    return [
        wire.ContainerMemory(
            memory_type=block.resource,
            size=block.size_bytes,
            topology=_topology(nodes_in(block.nodes)),
        )
        for block in blocks
    ]


def _topology(nodes: Iterable[int]) -> wire.TopologyInfo:
    return present(wire.TopologyInfo(nodes=[wire.NumaNode(id=node) for node in nodes]))


def _container_devices(resource: str, devices: Devices) -> Iterator[wire.ContainerDevices]:
    """One entry for each healthy device, with its NUMA nodes if it has some."""
    for device_id, device in devices.items():
        if not device.is_healthy:
            continue
        entry = wire.ContainerDevices(resource_name=resource, device_ids=[device_id])
        if device.numa_nodes:
            entry.topology = _topology(device.numa_nodes)
        yield entry
