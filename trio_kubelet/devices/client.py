"""A device plugin as the agent calls it: each call has a deadline, each answer is judged.

What a plugin answers goes into configs of containers, messages and files. So its size is limited,
names and paths must be some, and a plugin that breaks a rule is told of as one that failed.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

from attrs import field, frozen

from trio_kubelet.devices.allocation import ContainerAllocation
from trio_kubelet.rpc import Code, RpcError, Transport, is_present, rpc_words
from trio_kubelet.rpc.bounded import check_fields
from trio_kubelet.rpc.messages import decode, encode
from trio_kubelet.rpc.stubs import v1beta1 as wire
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.tasks.threads import run_in_thread

OPTIONS_SECONDS = 10.0
PREFERENCE_SECONDS = 30.0
ALLOCATE_SECONDS = 120.0
"""The Go kubelet waits for ever, and admits no other pod meanwhile."""
PRE_START_SECONDS = 30.0
"""As in the Go kubelet."""

MAX_DEVICES = 16_384
"""Of a resource: each list of them is compared with the one before."""
MAX_ANSWER_FIELDS = 8 * MAX_DEVICES
"""Of a list: a device with an id, its health and two NUMA nodes has eight."""
MANY_DEVICES = 512
"""More are looked at in a thread."""
MAX_ID_BYTES = 512
MAX_ITEMS = 1024
"""Of variables, mounts, devices, annotations, CDI devices of an answer to Allocate, each."""
MAX_FIELDS = 8192
"""Of such an answer, at all levels: it is decoded each time its container starts."""
MAX_NUMA_NODES = 64
MAX_RESPONSE_BYTES = 128 * 1024
"""Of an answer to Allocate, which is kept for as long as the container's pod lives. No variable of
a process can be longer."""
MAX_SHOWN = 80
MAX_WORDS = 1024
"""Characters of an error of a plugin: it becomes part of messages of pods."""

HEALTHY = "Healthy"


@frozen
class Device:
    """A device as its plugin lists it. `numa_nodes` may be empty."""

    is_healthy: bool
    numa_nodes: tuple[int, ...] = ()


Devices = Mapping[str, Device]
"""By their ids, in the plugin's order."""

DevicesByNodes = Mapping[tuple[int, ...], Sequence[str]]
"""Ids in their order, by the NUMA nodes that the devices are at."""


@frozen
class DeviceList:
    """All devices of a plugin as it listed them, and the ids of the healthy ones.

    There may be so many that a list is made in a thread, with all that others want to know of it.
    """

    devices: Devices = field(factory=dict)
    healthy: frozenset[str] = frozenset()
    by_nodes: DevicesByNodes = field(factory=dict)

    @classmethod
    def of(cls, devices: Devices) -> "DeviceList":
        """Make the list of these devices."""
        by_nodes: dict[tuple[int, ...], list[str]] = {}
        for name in sorted(devices):
            by_nodes.setdefault(devices[name].numa_nodes, []).append(name)
        healthy = frozenset(name for name, each in devices.items() if each.is_healthy)
        return cls(devices, healthy, by_nodes)


@frozen
class PluginOptions:
    """The calls that a plugin wants to have beside Allocate."""

    pre_start: bool = False
    preferences: bool = False


class DevicePluginError(Exception):
    """A call to a plugin failed, or its answer is of no use; the text is shown to users.

    `is_gone`: nobody is there, so that the call may be made again when the plugin is back.
    """

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone


@frozen(kw_only=True)
class DevicePluginClient:
    """The way to the plugin of a resource."""

    resource: str
    transport: Transport = field(repr=False)

    async def options(self) -> PluginOptions:
        """Ask for the options. Raises DevicePluginError."""
        try:
            answer = await self.transport.unary(
                wire.DevicePluginStub.get_device_plugin_options,
                wire.Empty(),
                deadline_seconds=OPTIONS_SECONDS,
            )
        except RpcError as error:
            raise _failed(error, "failed to get device plugin options: ") from error
        return PluginOptions(
            pre_start=answer.pre_start_required,
            preferences=answer.get_preferred_allocation_available,
        )

    async def follow(self, take: Callable[[DeviceList], Awaitable[None]]) -> None:
        """Hand over the plugin's devices whenever it lists them, until it ends its list.

        Raises DevicePluginError.
        """
        try:
            async with self.transport.stream(
                wire.DevicePluginStub.list_and_watch, wire.Empty()
            ) as answers:
                async for answer in answers:
                    if len(answer.devices) > MANY_DEVICES:
                        await take(await run_in_thread(listed_devices, answer))
                    else:
                        await take(listed_devices(answer))
        except RpcError as error:
            raise _failed(error) from error

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], count: int
    ) -> frozenset[str]:
        """Ask which of the available devices a container had best. Raises DevicePluginError."""
        asked = wire.ContainerPreferredAllocationRequest(
            available_device_i_ds=sorted(available),
            must_include_device_i_ds=sorted(must_include),
            allocation_size=count,
        )
        try:
            answer = await self.transport.unary(
                wire.DevicePluginStub.get_preferred_allocation,
                wire.PreferredAllocationRequest(container_requests=[asked]),
                deadline_seconds=PREFERENCE_SECONDS,
            )
        except RpcError as error:
            words = "device plugin GetPreferredAllocation rpc failed with err: "
            raise _failed(error, words) from error
        answers = answer.container_responses
        return frozenset(answers[0].device_i_ds) if answers else frozenset()

    async def allocate(self, ids: Collection[str]) -> bytes:
        """Have devices made ready for a container; the plugin's answer as it was on the wire.

        Raises DevicePluginError.
        """
        asked = wire.ContainerAllocateRequest(devices_ids=sorted(ids))
        try:
            answer = await self.transport.unary(
                wire.DevicePluginStub.allocate,
                wire.AllocateRequest(container_requests=[asked]),
                deadline_seconds=ALLOCATE_SECONDS,
            )
        except RpcError as error:
            raise _failed(error) from error
        if not answer.container_responses:
            raise DevicePluginError("no containers return in allocation response")
        response = answer.container_responses[0]
        problem = next(_problems(response), "")
        encoded = b"" if problem else encode(response)
        if len(encoded) > MAX_RESPONSE_BYTES:
            problem = f"{len(encoded)} bytes, must be at most {MAX_RESPONSE_BYTES}"
        else:
            try:
                check_fields(wire.ContainerAllocateResponse, encoded, MAX_FIELDS)
            except RpcError:
                problem = f"more than {MAX_FIELDS} fields"
        if problem:
            raise DevicePluginError(f"Allocate of {self.resource} answered {problem}")
        return encoded

    async def pre_start(self, ids: Collection[str]) -> None:
        """Have devices made ready for a container that starts. Raises DevicePluginError."""
        try:
            await self.transport.unary(
                wire.DevicePluginStub.pre_start_container,
                wire.PreStartContainerRequest(devices_ids=sorted(ids)),
                deadline_seconds=PRE_START_SECONDS,
            )
        except RpcError as error:
            words = "device plugin PreStartContainer rpc failed with err: "
            raise _failed(error, words) from error


def listed_devices(answer: wire.ListAndWatchResponse) -> DeviceList:
    """Return the devices of a list; may take long. Raises DevicePluginError."""
    if len(answer.devices) > MAX_DEVICES:
        count = len(answer.devices)
        raise DevicePluginError(f"it lists {count} devices, must be at most {MAX_DEVICES}")
    devices: dict[str, Device] = {}
    for each in answer.devices:
        if not each.id or len(each.id.encode()) > MAX_ID_BYTES:
            shown = each.id[:MAX_SHOWN]
            raise DevicePluginError(
                f"it lists a device with the ID {shown!r}, must have 1 to {MAX_ID_BYTES} bytes"
            )
        nodes: tuple[int, ...] = ()
        if is_present(each.topology):
            nodes = tuple(dict.fromkeys(n.id for n in each.topology.nodes[:MAX_NUMA_NODES]))
        devices[each.id] = Device(each.health == HEALTHY, nodes)
    return DeviceList.of(devices)


def allocation_of(responses: Collection[bytes]) -> ContainerAllocation:
    """Return what a container gets by the answers for its resources.

    Of two that say something of the same variable, path or annotation the first counts. Raises
    RpcError for bytes that are no answer.
    """
    variables: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, cri.Mount] = {}
    devices: dict[str, cri.Device] = {}
    cdi_devices: dict[str, None] = {}
    for data in responses:
        response = decode(wire.ContainerAllocateResponse, data)
        variables = {**response.envs, **variables}
        annotations = {**response.annotations, **annotations}
        for mount in response.mounts:
            mounts.setdefault(
                mount.container_path,
                cri.Mount(
                    container_path=mount.container_path,
                    host_path=mount.host_path,
                    readonly=mount.read_only,
                ),
            )
        for device in response.devices:
            devices.setdefault(
                device.container_path,
                cri.Device(
                    container_path=device.container_path,
                    host_path=device.host_path,
                    permissions=device.permissions,
                ),
            )
        cdi_devices.update(dict.fromkeys(each.name for each in response.cdi_devices))
    return ContainerAllocation(
        variables=variables,
        mounts=tuple(mounts.values()),
        devices=tuple(devices.values()),
        annotations=annotations,
        cdi_devices=tuple(cdi_devices),
    )


def _problems(response: wire.ContainerAllocateResponse) -> Iterator[str]:
    """Say what of an answer to Allocate cannot be part of a container."""
    for what, items in (
        ("variables", response.envs),
        ("mounts", response.mounts),
        ("devices", response.devices),
        ("annotations", response.annotations),
        ("CDI devices", response.cdi_devices),
    ):
        if len(items) > MAX_ITEMS:
            yield f"{len(items)} {what}, must be at most {MAX_ITEMS}"
    for name, value in response.envs.items():
        if not name or "=" in name or "\0" in name + value:
            yield f"with a variable of the name {name[:MAX_SHOWN]!r}, which none can have"
    for mount in response.mounts:
        for path in (mount.container_path, mount.host_path):
            if not _is_path(path):
                yield f"with a mount of {path[:MAX_SHOWN]!r}, which is no absolute path"
    for device in response.devices:
        for path in (device.container_path, device.host_path):
            if not _is_path(path):
                yield f"with a device at {path[:MAX_SHOWN]!r}, which is no absolute path"
        if set(device.permissions) - set("rwm"):
            yield f"with the permissions {device.permissions[:MAX_SHOWN]!r}, must be of r, w, m"


def _is_path(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def _failed(error: RpcError, words: str = "") -> DevicePluginError:
    is_gone = error.code in (Code.UNAVAILABLE, Code.CANCELLED)
    text = rpc_words(error.code, error.message[:MAX_WORDS])
    return DevicePluginError(f"{words}{text}", is_gone=is_gone)
