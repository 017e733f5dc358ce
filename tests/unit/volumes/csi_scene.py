"""A node with CSI drivers and a cluster that says what they are like, for the tests of this part.

The drivers are real ones on sockets, whose volumes are folders; mounts are in tests/integration.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, evolve, field

from lab.csi_driver import NAME, Behaviour, LabDriver, serve_driver
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.csi import CSIDrivers, DriverClient, DriverSettings, VolumeLimits, VolumeUsages
from trio_kubelet.csi.driver import NodeInfo
from trio_kubelet.k8s import (
    CSI_DRIVERS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    Container,
    CSIDriver,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    Node,
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    Volume,
    VolumeDevice,
    VolumeMount,
)
from trio_kubelet.plugins import Plugin
from trio_kubelet.references import References
from trio_kubelet.rpc import InProcess
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.volumes import CSIParts, CSIStages, PodFolders, StagedVolumes, local_volumes
from trio_kubelet.volumes.doubt_marks import CSI_MARKS
from trio_kubelet.volumes.volumes import Volumes

EPHEMERAL = CSIDriverSpec(volume_lifecycle_modes=("Ephemeral",))
UID = "uid-1"


def a_pod(source: CSIVolumeSource | None = None, **spec: Any) -> Pod:
    source = source or CSIVolumeSource(driver=NAME, volume_attributes={"size": "1"})
    mount = VolumeMount(name="v", mount_path="/v")
    return Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid=UID),
        spec=PodSpec(
            containers=(Container(name="c", image="i", volume_mounts=(mount,)),),
            volumes=(Volume(name="v", csi=source),),
            service_account_name="sa",
            **spec,
        ),
    )


@define
class Scene:
    """A node with a driver, and a cluster that says what the driver is like."""

    root: Path
    nursery: trio.Nursery
    server: ApiServer = field(factory=ApiServer)
    drivers: CSIDrivers = field(factory=CSIDrivers)
    node: Node | None = None
    look_seconds: float = 60.0
    selinux: bool = False
    privileged: bool = False
    """The volumes of the node itself are mounts."""
    events: list[RecordedEvent] = field(factory=list)
    recorder: EventRecorder = field(init=False)
    usages: VolumeUsages = field(init=False)
    staged: StagedVolumes = field(init=False)
    stages: CSIStages = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.usages = VolumeUsages(self.drivers, TrioClock(), 60.0)

    @property
    def folder(self) -> Path:
        return self.root / "pods" / UID / "volumes" / "kubernetes.io~csi" / "v"

    @property
    def target(self) -> str:
        return str(self.folder / "mount")

    def marks(self) -> list[str]:
        folder = self.root / CSI_MARKS
        return [each.name for each in folder.iterdir()] if folder.exists() else []

    def agent(self) -> Volumes:
        """The volumes as an agent has them that was just started."""
        api = self.server.client()
        references = References(api, clock=TrioClock())
        settings = DriverSettings(api)
        self.nursery.start_soon(references.run)
        limits = VolumeLimits(self.drivers, settings)
        self.nursery.start_soon(settings.run)
        self.nursery.start_soon(limits.run)
        references.register(self.pod)
        journal = Journal(TrioClock())
        self.recorder = EventRecorder(journal, "node")
        self.recorder.on_event.add(self.events.append)
        parts = CSIParts(
            drivers=self.drivers,
            usages=self.usages,
            settings=settings,
            node="node",
            node_object=lambda: self.node,
            journal=journal,
            recorder=self.recorder,
            clock=TrioClock(),
            privileged=False,
            look_seconds=self.look_seconds,
            limits=limits,
            selinux=self.selinux,
        )
        folders = PodFolders(self.root)
        volumes = local_volumes(
            folders,
            lambda pod: 1 << 20,
            data=references,
            clock=TrioClock(),
            privileged=self.privileged,
        )
        self.staged = StagedVolumes(self.root, journal, lambda: self.node, parts.operations)
        self.stages = CSIStages(parts, folders, references, self.staged)
        return volumes.with_csi(self.stages)

    pod: Pod = field(factory=a_pod)

    def describe(self, spec: CSIDriverSpec) -> None:
        self.server.create(CSI_DRIVERS, CSIDriver(metadata=ObjectMeta(name=NAME), spec=spec))

    @asynccontextmanager
    async def driver(
        self, kind: type[LabDriver] = LabDriver, **behaviour: Any
    ) -> AsyncIterator[LabDriver]:
        folder = self.root / "d"
        folder.mkdir(exist_ok=True)
        driver = kind(folder, Behaviour(**behaviour))
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_driver, driver, None)
            plugin = Plugin(
                type="CSIPlugin",
                name=NAME,
                endpoint=str(driver.socket),
                versions=("1.12.0",),
                socket=folder / "reg.sock",
            )
            async with self.drivers.handle(plugin):
                yield driver
            nursery.cancel_scope.cancel()

    @contextmanager
    def driver_in_process(self, **behaviour: Any) -> Iterator[LabDriver]:
        """A driver that needs no socket: for tests on a mock clock."""
        folder = self.root / "d"
        folder.mkdir(exist_ok=True)
        driver = LabDriver(folder, Behaviour(**behaviour))
        client = DriverClient(name=NAME, version=(1, 12), transport=InProcess(driver))
        with self.drivers.registered(client, NodeInfo(node_id="n")):
            yield driver


def calls(driver: LabDriver, method: str, step: str = "done") -> list[dict[str, Any]]:
    lines = driver.log.read()
    return [line for line in lines if line["method"] == method and line.get("step") == step]


def order(driver: LabDriver) -> list[str]:
    """The calls that were done, in their order."""
    return [
        line["method"].removeprefix("Node").removesuffix("Volume")
        for line in driver.log.read()
        if line.get("step") == "done"
    ]


async def an_agent(scene: Scene) -> Volumes:
    """The volumes of an agent that was just started."""
    volumes = scene.agent()
    await scene.nursery.start(scene.staged.run)
    await scene.nursery.start(scene.stages.run)
    return volumes


NOT_ATTACHED = CSIDriverSpec(attach_required=False, volume_lifecycle_modes=("Persistent",))
ATTACHED = evolve(NOT_ATTACHED, attach_required=True)


def claiming(
    uid: str = UID,
    claim: str = "data",
    *,
    as_device: bool = False,
    read_only: bool | None = None,
) -> Pod:
    """A pod that mounts a claim."""
    source = PersistentVolumeClaimVolumeSource(claim_name=claim, read_only=read_only)
    mounts = () if as_device else (VolumeMount(name="v", mount_path="/v"),)
    devices = (VolumeDevice(name="v", device_path="/dev/v"),) if as_device else ()
    container = Container(name="c", image="i", volume_mounts=mounts, volume_devices=devices)
    return Pod(
        metadata=ObjectMeta(name=f"p-{uid}", namespace="default", uid=uid),
        spec=PodSpec(
            containers=(container,),
            volumes=(Volume(name="v", persistent_volume_claim=source),),
            service_account_name="sa",
        ),
    )


def describe(
    scene: Scene,
    settings: CSIDriverSpec | None = NOT_ATTACHED,
    volume: Mapping[str, Any] | None = None,
    claim_name: str = "data",
    volume_name: str = "pv",
    **source: Any,
) -> None:
    """Have a claim in the cluster that is bound to the driver's volume `h-1`."""
    if settings is not None:
        scene.describe(settings)
    claim = PersistentVolumeClaim(
        metadata=ObjectMeta(name=claim_name, namespace="default"),
        spec=PersistentVolumeClaimSpec(volume_name=volume_name),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )
    uid = scene.server.create(PERSISTENT_VOLUME_CLAIMS, claim).metadata.uid
    spec = PersistentVolumeSpec(
        csi=CSIPersistentVolumeSource(**{"driver": NAME, "volume_handle": "h-1", **source}),
        claim_ref=ObjectReference(uid=uid),
        **{"access_modes": ("ReadWriteOnce",), **(volume or {})},
    )
    persistent = PersistentVolume(metadata=ObjectMeta(name=volume_name), spec=spec)
    scene.server.create(PERSISTENT_VOLUMES, persistent)
