"""Slices of systemd: cgroups that systemd makes, asked for over D-Bus.

With the driver `systemd` the service manager owns the tree. A pod's cgroup is a transient slice,
started and changed with properties that say the same as the kernel's files. systemd then leaves
the folder to us, so the controllers that it does not know (cpuset, huge pages) are written by
`CgroupTree` as with cgroupfs.

A machine may have systemd and no D-Bus daemon (the nodes of kind have none). There systemd itself
is asked, at its private socket, which only root may use.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import trio
from jeepney import DBusAddress, HeaderFields, Message

from state_machines.backoff import BackoffPolicy
from trio_kubelet.kernel.system_bus import NO_REPLY, SYSTEM_BUS, Bus, BusError, open_bus
from trio_kubelet.resources.cgroup_config import NO_QUOTA, CgroupConfig, cpu_weight
from trio_kubelet.resources.cgroup_names import CgroupName
from trio_kubelet.tasks.retries import Retries

Property = tuple[str, tuple[str, object]]
"""Name, and D-Bus signature with value."""

PRIVATE_SOCKET = "/run/systemd/private"
_NO_LIMIT = 2**64 - 1
_MICROSECONDS = 1_000_000
_QUOTA_STEP_US = 10_000
_TIMEOUT_SECONDS = 30.0

_MANAGER = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
_JOB_REMOVED = "JobRemoved"
_UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
# What the bus says while systemd executes itself anew (systemctl daemon-reexec).
_AWAY = (
    NO_REPLY,
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.ServiceUnknown",
)
_RETRY = BackoffPolicy(initial_seconds=0.05, cap_seconds=1.0)


def slice_properties(name: CgroupName, cgroup_version: int) -> tuple[Property, ...]:
    """Return what a new slice needs besides its values."""
    parent = CgroupName(name.components[:-1]).systemd_slice
    io_accounting = "BlockIOAccounting" if cgroup_version == 1 else "IOAccounting"
    accounting = ("CPUAccounting", "MemoryAccounting", "TasksAccounting", io_accounting)
    return (
        ("Description", ("s", f"Pods of the node agent: {name.cgroupfs_path}")),
        ("Wants", ("as", [parent])),
        ("DefaultDependencies", ("b", False)),
        *((each, ("b", True)) for each in accounting),
    )


def value_properties(config: CgroupConfig, cgroup_version: int) -> tuple[Property, ...]:
    """Return the values of a slice; what is None is left alone."""
    return tuple(_values(config, cgroup_version))


def _values(config: CgroupConfig, cgroup_version: int) -> Iterator[Property]:
    if config.cpu_shares is not None:
        if cgroup_version == 1:
            yield "CPUShares", ("t", config.cpu_shares)
        else:
            yield "CPUWeight", ("t", cpu_weight(config.cpu_shares))
    if config.cpu_quota_us is not None:
        period = config.cpu_period_us
        if period is not None:
            yield "CPUQuotaPeriodUSec", ("t", period)
        yield "CPUQuotaPerSecUSec", ("t", _quota_per_second(config.cpu_quota_us, period))
    if config.memory_limit_bytes is not None:
        name = "MemoryLimit" if cgroup_version == 1 else "MemoryMax"
        yield name, ("t", config.memory_limit_bytes)
    if cgroup_version != 1:
        if config.memory_min_bytes is not None:
            yield "MemoryMin", ("t", config.memory_min_bytes)
        if config.memory_low_bytes is not None:
            yield "MemoryLow", ("t", config.memory_low_bytes)
    if config.pids_limit is not None:
        yield "TasksMax", ("t", config.pids_limit)


def _quota_per_second(quota_us: int, period_us: int | None) -> int:
    """Return the quota for each second in microseconds, in the steps of 1 % that systemd takes."""
    if quota_us in (0, NO_QUOTA) or not period_us:
        return _NO_LIMIT
    exact = quota_us * _MICROSECONDS / period_us
    return math.ceil(exact / _QUOTA_STEP_US) * _QUOTA_STEP_US


class SystemdSlices:
    """Starts, changes and stops slices. One connection a call: calls are rare.

    What systemd did not answer, because it executed itself anew, it is asked again: nothing here
    does harm when it is done twice.
    """

    __slots__ = ("_bus", "_cgroup_version", "_private_socket")

    def __init__(
        self, cgroup_version: int, bus: str = SYSTEM_BUS, private_socket: str = PRIVATE_SOCKET
    ) -> None:
        self._cgroup_version = cgroup_version
        self._bus = bus
        self._private_socket = private_socket

    async def start(self, name: CgroupName, config: CgroupConfig) -> None:
        """Start a slice and wait until it is there; one that runs already gets the values.

        Raises BusError. Cancelled, the slice may be there or not.
        """
        values = value_properties(config, self._cgroup_version)
        properties = (*slice_properties(name, self._cgroup_version), *values)
        body: tuple[object, ...] = (name.systemd_slice, "replace", list(properties), [])
        try:
            await self._job("StartTransientUnit", "ssa(sv)a(sa(sv))", body)
        except BusError as error:
            if error.name != _UNIT_EXISTS:
                raise
            await self.set_values(name, config)

    async def set_values(self, name: CgroupName, config: CgroupConfig) -> None:
        """Change the values of a running slice; raises BusError."""
        values = value_properties(config, self._cgroup_version)
        body = (name.systemd_slice, True, list(values))

        async def ask(systemd: _Exchange) -> None:
            await systemd.call("SetUnitProperties", "sba(sv)", body)

        await self._ask(ask)

    async def stop(self, name: CgroupName) -> None:
        """Stop a slice with everything in it; one that does not run is fine."""
        try:
            await self._job("StopUnit", "ss", (name.systemd_slice, "replace"))
        except BusError as error:
            if error.name != _NO_SUCH_UNIT:
                raise

    async def _job(self, method: str, signature: str, body: tuple[object, ...]) -> None:
        """Call a method that queues a job, and wait for the job's end."""

        async def ask(systemd: _Exchange) -> None:
            await systemd.hear_of_jobs()
            (job,) = await systemd.call(method, signature, body)
            result = await systemd.end_of_job(job)
            if result != "done":
                raise BusError("", f"systemd: {method} of {body[0]} ended as {result}")

        await self._ask(ask)

    async def _ask(self, ask: Callable[["_Exchange"], Awaitable[None]]) -> None:
        """Ask in a connection of its own, and again for as long as systemd is away."""
        deadline = trio.current_time() + _TIMEOUT_SECONDS
        retries = Retries(_RETRY)
        while True:
            try:
                async with _exchange(self._bus, self._private_socket) as systemd:
                    return await ask(systemd)
            except BusError as error:
                if error.name not in _AWAY or trio.current_time() >= deadline:
                    raise
            await retries.wait()


class _Exchange:
    """Calls of systemd's manager, one after the other, and what was heard of jobs meanwhile."""

    __slots__ = ("_bus", "_ended")

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bus.on_signal = self._note
        self._ended: dict[object, object] = {}

    async def call(
        self, method: str, signature: str = "", body: tuple[object, ...] = ()
    ) -> tuple[object, ...]:
        """Call a method; raises BusError where systemd refuses."""
        return await self._bus.call(_MANAGER, method, signature, body)

    async def hear_of_jobs(self) -> None:
        """Ask to be told of the end of jobs; without a bus we are told anyway."""
        if self._bus.has_bus:
            await self._bus.hear(_MANAGER, _JOB_REMOVED)
            await self.call("Subscribe")

    async def end_of_job(self, job: object) -> object:
        """Wait for the end of a job and return its result."""
        while job not in self._ended:
            await self._bus.receive()
        return self._ended[job]

    def _note(self, signal: Message) -> None:
        if signal.header.fields.get(HeaderFields.member) == _JOB_REMOVED:
            _, job, _, result = signal.body
            self._ended[job] = result


@asynccontextmanager
async def _exchange(bus: str, private_socket: str) -> AsyncIterator[_Exchange]:
    """Hold a connection for one exchange, of limited time; raises BusError if it breaks."""
    try:
        with trio.fail_after(_TIMEOUT_SECONDS):
            async with open_bus("systemd", bus, private_socket) as opened:
                yield _Exchange(opened)
    except trio.TooSlowError as error:
        late = f"systemd cannot be asked: no answer for {_TIMEOUT_SECONDS:g} s"
        raise BusError("", late) from error
