"""What monitoring agents are told of devices, and how often they may ask."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from tests.unit.devices.nodes import (
    DeviceNode,
    device_container,
    device_node,
    device_pod,
    devices,
)
from tests.unit.dra.nodes import claim_pod
from tests.unit.resource_managers.machines import TWO_SOCKETS, machine, managers_of
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.dra import ClaimRecords
from trio_kubelet.dra.checkpoint import ClaimRecord, PreparedDevice
from trio_kubelet.k8s import Container, Pod, ResourceClaim, ResourceRequirements
from trio_kubelet.k8s.client.rate_limit import RateLimit
from trio_kubelet.ports import pod_resources
from trio_kubelet.ports.pod_resources import MAX_WAITING, PodResourcesLister
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.memory_draft import static_memory_policy
from trio_kubelet.resource_managers.pod_level import PodLevel
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.messages import decode, encode
from trio_kubelet.rpc.stubs import v1 as wire

DEADLINE_SECONDS = 60
POD = device_pod(
    "u1",
    device_container(),
    device_container("plain", 0),
    init=[device_container("first"), device_container("side", sidecar=True)],
)


def lister(node: DeviceNode, *pods: Pod, claims: ClaimRecords | None = None) -> PodResourcesLister:
    def find(namespace: str, name: str) -> Pod | None:
        known = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
        return known.get((namespace, name))

    managers = managers_of(None, devices=node.manager)
    return PodResourcesLister(node.folder, managers, claims, lambda: pods, find)


def shown(pod: wire.PodResources) -> dict[str, list[tuple[str, list[str]]]]:
    """Resource and ids of the devices of each container."""
    return {
        container.name: [(each.resource_name, each.device_ids) for each in container.devices]
        for container in pod.containers
    }


async def test_pods_are_told_of_with_the_devices_of_containers_that_stay(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(tmp_path, monkeypatch) as node:
        await node.register(node.plugin(*devices(4)))
        await node.manager.prepare(POD, ())
        service = lister(node, POD)
        answer = encode(await service.list(wire.ListPodResourcesRequest()))
        (pod,) = decode(wire.ListPodResourcesResponse, answer).pod_resources
        assert (pod.namespace, pod.name) == ("default", "u1")
        (side,), (main,) = node.has(POD, "side"), node.has(POD)
        expected = {"side": [(RESOURCE, [side])], "main": [(RESOURCE, [main])], "plain": []}
        assert shown(pod) == expected
        request = wire.GetPodResourcesRequest(pod_name="u1", pod_namespace="default")
        found = decode(wire.GetPodResourcesResponse, encode(await service.get(request)))
        assert shown(found.pod_resources) == expected


async def test_all_healthy_devices_are_allocatable_whoever_has_them(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(tmp_path, monkeypatch) as node:
        plugin = node.plugin()
        plugin.set_devices({"dev-0": "Healthy", "dev-1": "Unhealthy", "dev-2": "Healthy"})
        await node.register(plugin)
        service = lister(node)
        request = wire.AllocatableResourcesRequest()
        answer = encode(await service.get_allocatable_resources(request))
        found = decode(wire.AllocatableResourcesResponse, answer).devices
        assert [(each.resource_name, each.device_ids) for each in found] == [
            (RESOURCE, ["dev-0"]),
            (RESOURCE, ["dev-2"]),
        ]


async def test_a_pod_that_is_not_there_is_an_error_and_is_counted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(tmp_path, monkeypatch) as node:
        service, errors = lister(node), list[str]()
        service.on_error.add(errors.append)
        with pytest.raises(RpcError, match="pod a in namespace b not found"):
            await service.get(wire.GetPodResourcesRequest(pod_name="a", pod_namespace="b"))
        assert errors == ["get"]


async def test_calls_over_the_rate_are_refused(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(tmp_path, monkeypatch) as node:
        service = lister(node)
        request = wire.GetPodResourcesRequest(pod_name="a", pod_namespace="b")

        async def ask() -> str:
            with pytest.raises(RpcError) as error:
                await service.get(request)
            return error.value.message

        assert [await ask() for _ in range(10)] == ["pod a in namespace b not found"] * 10
        assert await ask() == "rejected by rate limit"
        await trio.sleep(1)
        assert await ask() == "pod a in namespace b not found"


async def test_calls_that_wait_for_others_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources, "RATE", RateLimit(qps=1.0, burst=100))
    async with device_node(tmp_path, monkeypatch) as node:
        service, goes_on = lister(node), threading.Event()
        answered, refused = list[object](), list[str]()
        monkeypatch.setattr(pod_resources, "encode_ahead", lambda _: goes_on.wait(DEADLINE_SECONDS))

        async def ask() -> None:
            try:
                answered.append(await service.list(wire.ListPodResourcesRequest()))
            except RpcError as error:
                refused.append(error.message)
                goes_on.set()

        async with trio.open_nursery() as nursery:
            for _ in range(MAX_WAITING + 2):
                nursery.start_soon(ask)
        assert refused == ["rejected by rate limit"]
        assert len(answered) == MAX_WAITING + 1


async def test_exclusive_cpus_and_memory_of_numa_nodes_are_told_of(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = machine(TWO_SOCKETS)
    cpus = static_cpu_policy(topology, CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0)
    memory = static_memory_policy(topology, (), {})
    pod = a_pod("u", "2", guaranteed("shares", "500m"))
    async with device_node(tmp_path, monkeypatch) as node:
        managers = managers_of(cpus, memory=memory, devices=node.manager)
        assert managers.reserve(pod, lambda _uid: False) is None
        service = PodResourcesLister(node.folder, managers, None, lambda: [pod], lambda *_: pod)
        answer = encode(await service.list(wire.ListPodResourcesRequest()))
        (found,) = decode(wire.ListPodResourcesResponse, answer).pod_resources
        assert {each.name: each.cpu_ids for each in found.containers} == {
            "c0": [1, 13],
            "shares": [],
        }
        assert not found.cpu_ids
        assert not found.memory
        assert [blocks(each.memory) for each in found.containers] == [
            [("memory", 1 << 30, [0])]
        ] * 2
        request = wire.AllocatableResourcesRequest()
        answer = encode(await service.get_allocatable_resources(request))
        allocatable = decode(wire.AllocatableResourcesResponse, answer)
        assert allocatable.cpu_ids == list(range(1, 24))
        assert blocks(allocatable.memory) == [("memory", 10 << 30, [0]), ("memory", 10 << 30, [1])]


async def test_what_a_pod_has_as_one_part_is_told_of_beside_the_slices_of_its_containers(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, by_pod = machine(TWO_SOCKETS), PodLevel.BY_POD
    cpus = static_cpu_policy(
        topology, CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0, pod_level=by_pod
    )
    memory = static_memory_policy(topology, (), {}, by_pod)
    shares = Container(name="shares", image="i")
    pod = a_pod("u", guaranteed("slice", "2", memory="256Mi"), shares, whole="4")
    async with device_node(tmp_path, monkeypatch) as node:
        managers = managers_of(
            cpus, memory=memory, devices=node.manager, by_pod=True, pod_level=by_pod
        )
        assert managers.reserve(pod, lambda _uid: False) is None
        service = PodResourcesLister(node.folder, managers, None, lambda: [pod], lambda *_: pod)
        answer = encode(await service.list(wire.ListPodResourcesRequest()))
        (found,) = decode(wire.ListPodResourcesResponse, answer).pod_resources
        assert found.cpu_ids == [1, 2, 13, 14]
        assert blocks(found.memory) == [("memory", 1 << 30, [0])]
        assert [each.cpu_ids for each in found.containers] == [[1, 13], []]


def blocks(told: Sequence[wire.ContainerMemory]) -> list[tuple[str, int, list[int]]]:
    """What is told of memory: its kind, bytes and NUMA nodes."""
    return [(b.memory_type, b.size, [node.id for node in b.topology.nodes]) for b in told]


def claim_record(name: str, *pods: str, is_answered: bool = True) -> ClaimRecord:
    """A claim with a device for each of two requests, one an alternative."""
    devices = (
        PreparedDevice(
            pool="pool", device="gpu-0", requests=("gpu/large",), cdi_ids=("k=gpu-0", "k=all")
        ),
        PreparedDevice(
            pool="pool", device="nic-0", requests=("nic",), cdi_ids=("k=nic-0",), share_id="s"
        ),
    )
    return ClaimRecord(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        pods=frozenset(pods),
        drivers={"driver": devices if is_answered else None},
    )


def using(name: str, *uses: tuple[str, str]) -> Container:
    claims = tuple(ResourceClaim(name=claim, request=request) for claim, request in uses)
    return Container(name=name, resources=ResourceRequirements(claims=claims))


def claimed(pod: wire.PodResources) -> dict[str, list[tuple[str, list[str]]]]:
    """Names of the claims, and of their devices, of each container."""
    return {
        container.name: [
            (each.claim_name, [device.device_name for device in each.claim_resources])
            for each in container.dynamic_resources
        ]
        for container in pod.containers
    }


async def test_devices_of_claims_are_told_of_once_they_are_prepared(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = ClaimRecords(tmp_path)
    for record in (
        claim_record("a", "u"),
        claim_record("late", "u", is_answered=False),
        claim_record("of-others", "v"),
    ):
        records.put(record)
    containers = [
        using("all", ("a", ""), ("late", ""), ("of-others", "")),
        using("nic", ("a", "nic")),
        using("both", ("a", "gpu"), ("a", "nic")),
        using("none"),
    ]
    pod = claim_pod("u", "a", "late", "of-others", containers=containers)
    waiting = claim_pod("u", "a", "unknown", containers=containers)
    request = wire.GetPodResourcesRequest(pod_name="u", pod_namespace="default")
    async with device_node(tmp_path, monkeypatch) as node:
        service = lister(node, pod, claims=records)
        answer = encode(await service.list(wire.ListPodResourcesRequest()))
        (found,) = decode(wire.ListPodResourcesResponse, answer).pod_resources
        both, nics = [("a", ["gpu-0", "nic-0"])], [("a", ["nic-0"])]
        assert claimed(found) == {"all": both, "nic": nics, "both": both, "none": []}
        (told,) = found.containers[1].dynamic_resources
        (nic,) = told.claim_resources
        assert (told.claim_namespace, nic.driver_name) == ("default", "driver")
        assert (nic.pool_name, nic.share_id) == ("pool", "s")
        assert [each.name for each in nic.cdi_devices] == ["k=nic-0"]
        assert claimed((await service.get(request)).pod_resources) == claimed(found)
        # One of its claims is not made yet, or the gate is off.
        for service in (lister(node, made_later(waiting), claims=records), lister(node, pod)):
            assert not any(claimed((await service.get(request)).pod_resources).values())


def made_later(pod: Pod) -> Pod:
    """The pod, whose last claim is to be made by a template."""
    *others, last = pod.spec.resource_claims
    claims = (*others, evolve(last, resource_claim_name=None))
    return evolve(pod, spec=evolve(pod.spec, resource_claims=claims))
