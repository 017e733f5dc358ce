"""The claims of a node, with drivers in the same process, on a mock clock."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from attrs import define, field

from lab.dra_driver import NAME, DRABehaviour, LabDRADriver
from tests.trio_clock import TrioClock
from trio_kubelet.dra import ClaimManager, ClaimRecords, DRADrivers
from trio_kubelet.dra import driver as driver_module
from trio_kubelet.dra import health as health_module
from trio_kubelet.dra.drivers import registered_driver
from trio_kubelet.k8s import (
    AllocatedClaim,
    AllocatedClaimStatus,
    AllocatedDevice,
    AllocatedDevices,
    ClaimAllocation,
    ClaimConsumer,
    Container,
    ObjectMeta,
    Pod,
    PodResourceClaim,
    PodSpec,
    ResourceClaim,
    ResourceRequirements,
)
from trio_kubelet.plugins import Plugin
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.telemetry import Journal


class Line(InProcess):
    """The way to a driver in this process."""

    def __init__(self, driver: object) -> None:
        super().__init__(driver)

    def close(self) -> None:
        """There is nothing to close."""


class Unreachable:
    """A socket that nobody serves."""

    async def node_prepare_resources(self, _: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RpcError(Code.UNAVAILABLE, "cannot connect")

    node_unprepare_resources = node_prepare_resources

    async def node_watch_resources(self, request: object) -> AsyncIterator[None]:
        await self.node_prepare_resources(request)
        yield


@define
class Objects:
    """The claims in the API."""

    claims: dict[str, AllocatedClaim] = field(factory=dict)
    asked: int = 0

    async def resource_claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return a claim, or raise ObjectError."""
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if name not in self.claims:
            raise ObjectError(f"failed to fetch ResourceClaim {namespace}/{name}: not found")
        return self.claims[name]

    def add(
        self,
        name: str,
        *pods: str,
        drivers: Sequence[str] = (NAME,),
        uid: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Have a claim that is allocated, and reserved for pods of these UIDs."""
        results = tuple(AllocatedDevice(driver=each) for each in drivers)
        self.claims[name] = AllocatedClaim(
            metadata=ObjectMeta(
                name=name, namespace="default", uid=uid or f"uid-{name}", **(metadata or {})
            ),
            status=AllocatedClaimStatus(
                allocation=ClaimAllocation(devices=AllocatedDevices(results=results)),
                reserved_for=tuple(ClaimConsumer(resource="pods", uid=pod) for pod in pods),
            ),
        )


@define
class ClaimNode:
    """The claims of a node; `reachable` are the drivers at their sockets."""

    folder: Path
    manager: ClaimManager
    drivers: DRADrivers
    objects: Objects
    reachable: dict[str, LabDRADriver] = field(factory=dict)
    told: list[str] = field(factory=list)

    def lab_driver(self, name: str = NAME, **behaviour: Any) -> LabDRADriver:
        """A driver that is there, and not registered yet."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        driver = LabDRADriver(folder, DRABehaviour(name=name, **behaviour))
        self.reachable[str(folder / "dra.sock")] = driver
        return driver

    @contextmanager
    def registered(self, driver: LabDRADriver) -> Iterator[None]:
        """The driver is registered for as long as the block lasts."""
        name = driver.behaviour.name
        socket = driver.folder / "dra.sock"
        plugin = Plugin(
            type="DRAPlugin",
            name=name,
            endpoint=str(socket),
            versions=driver.behaviour.versions,
            socket=socket,
        )
        with self.drivers.registered(registered_driver(plugin)):
            yield


def claim_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, objects: Objects | None = None
) -> ClaimNode:
    """The claims of a node on what its folder holds, once they are loaded."""
    drivers, objects = DRADrivers(), objects or Objects()
    manager = ClaimManager(
        drivers, ClaimRecords(folder), cast("References", objects), Journal(TrioClock())
    )
    node = ClaimNode(folder, manager, drivers, objects)
    manager.on_pods.add(node.told.extend)
    manager.on_health.add(node.told.extend)

    def line(path: str, **_: object) -> InProcess:
        return Line(node.reachable.get(path, Unreachable()))

    for module in (driver_module, health_module):
        monkeypatch.setattr(module, "Channel", line)
    return node


def claim_pod(uid: str, *claims: str, containers: Sequence[Container] = ()) -> Pod:
    """A pod with claims that are named as in the API; one container uses all of them."""
    uses = tuple(ResourceClaim(name=each) for each in claims)
    main = Container(name="main", resources=ResourceRequirements(claims=uses))
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(
            containers=tuple(containers) or (main,),
            resource_claims=tuple(
                PodResourceClaim(name=each, resource_claim_name=each) for each in claims
            ),
        ),
    )


def no_claims(journal: Journal, folder: Path = Path("/nowhere")) -> ClaimManager:
    """The claims of a node without any."""
    records = ClaimRecords(folder)
    return ClaimManager(DRADrivers(), records, NoReferences(), journal)
