"""Slices of systemd: cgroups that systemd makes, asked for over D-Bus.

With the driver `systemd` the service manager owns the tree. A pod's cgroup is a transient slice,
started and changed with properties that say the same as the kernel's files. systemd then leaves
the folder to us, so the controllers that it does not know (cpuset, huge pages) are written by
`CgroupTree` as with cgroupfs.

A machine may have systemd and no D-Bus daemon (the nodes of kind have none). There systemd itself
is asked, at its private socket, which only root may use.
"""

import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    MatchRule,
    Message,
    MessageType,
    message_bus,
    new_method_call,
)
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus import get_bus
from jeepney.io.trio import DBusConnection

from state_machines.backoff import BackoffPolicy
from trio_kubelet.resources.cgroup_config import NO_QUOTA, CgroupConfig, cpu_weight
from trio_kubelet.resources.cgroup_names import CgroupName
from trio_kubelet.tasks.retries import Retries

Property = tuple[str, tuple[str, object]]
"""Name, and D-Bus signature with value."""

SYSTEM_BUS = "SYSTEM"
PRIVATE_SOCKET = "/run/systemd/private"
_NO_LIMIT = 2**64 - 1
_MICROSECONDS = 1_000_000
_QUOTA_STEP_US = 10_000
_TIMEOUT_SECONDS = 30.0

_MANAGER = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
_BROKEN = (OSError, trio.BrokenResourceError, trio.EndOfChannel, AuthenticationError)
# What jeepney raises for a message that it cannot read; the bus passes on such ones, too.
_UNREADABLE = (ValueError, LookupError, TypeError, AssertionError, struct.error)
_JOB_REMOVED = "JobRemoved"
_UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
# What the bus says while systemd executes itself anew (systemctl daemon-reexec).
_AWAY = tuple(
    f"org.freedesktop.DBus.Error.{name}" for name in ("NoReply", "NameHasNoOwner", "ServiceUnknown")
)
_RETRY = BackoffPolicy(initial_seconds=0.05, cap_seconds=1.0)


class SystemdError(Exception):
    """systemd refused, or could not be asked; `name` is D-Bus' name of the error, or ""."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


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

        Raises SystemdError. Cancelled, the slice may be there or not.
        """
        values = value_properties(config, self._cgroup_version)
        properties = (*slice_properties(name, self._cgroup_version), *values)
        body: tuple[object, ...] = (name.systemd_slice, "replace", list(properties), [])
        try:
            await self._job("StartTransientUnit", "ssa(sv)a(sa(sv))", body)
        except SystemdError as error:
            if error.name != _UNIT_EXISTS:
                raise
            await self.set_values(name, config)

    async def set_values(self, name: CgroupName, config: CgroupConfig) -> None:
        """Change the values of a running slice; raises SystemdError."""
        values = value_properties(config, self._cgroup_version)
        body = (name.systemd_slice, True, list(values))

        async def ask(systemd: _Exchange) -> None:
            await systemd.call("SetUnitProperties", "sba(sv)", body)

        await self._ask(ask)

    async def stop(self, name: CgroupName) -> None:
        """Stop a slice with everything in it; one that does not run is fine."""
        try:
            await self._job("StopUnit", "ss", (name.systemd_slice, "replace"))
        except SystemdError as error:
            if error.name != _NO_SUCH_UNIT:
                raise

    async def _job(self, method: str, signature: str, body: tuple[object, ...]) -> None:
        """Call a method that queues a job, and wait for the job's end."""

        async def ask(systemd: _Exchange) -> None:
            await systemd.hear_of_jobs()
            (job,) = await systemd.call(method, signature, body)
            result = await systemd.end_of_job(job)
            if result != "done":
                raise SystemdError("", f"systemd: {method} of {body[0]} ended as {result}")

        await self._ask(ask)

    async def _ask(self, ask: Callable[["_Exchange"], Awaitable[None]]) -> None:
        """Ask in a connection of its own, and again for as long as systemd is away."""
        deadline = trio.current_time() + _TIMEOUT_SECONDS
        retries = Retries(_RETRY)
        while True:
            try:
                async with _exchange(self._bus, self._private_socket) as systemd:
                    return await ask(systemd)
            except SystemdError as error:
                if error.name not in _AWAY or trio.current_time() >= deadline:
                    raise
            await retries.wait()


class _Exchange:
    """One connection: calls one after the other, and what was heard of jobs meanwhile.

    jeepney's router would do it in a task of its own, and fails when the bus hangs up on it.
    Every user of the machine may send signals over the bus: those to all come from systemd, by the
    rule of the subscription, but those to this connection come from anybody and count for nothing.
    Without a bus between, systemd is the only one there.
    """

    __slots__ = ("_connection", "_ended", "_has_bus")

    def __init__(self, connection: DBusConnection, *, has_bus: bool) -> None:
        self._connection = connection
        self._has_bus = has_bus
        self._ended: dict[object, object] = {}

    async def call(
        self, method: str, signature: str = "", body: tuple[object, ...] = ()
    ) -> tuple[object, ...]:
        """Call a method of systemd's manager; raises SystemdError where it refuses."""
        return await self._ask(new_method_call(_MANAGER, method, signature, body))

    async def greet(self) -> None:
        """Say who we are, as a bus wants to hear first."""
        if self._has_bus:
            await self._ask(message_bus.Hello())

    async def hear_of_jobs(self) -> None:
        """Ask to be told of the end of jobs; without a bus we are told anyway."""
        if not self._has_bus:
            return
        rule = MatchRule(
            type="signal",
            sender=_MANAGER.bus_name,
            interface=_MANAGER.interface,
            member=_JOB_REMOVED,
        )
        await self._ask(message_bus.AddMatch(rule))
        await self.call("Subscribe")

    async def end_of_job(self, job: object) -> object:
        """Wait for the end of a job and return its result."""
        while job not in self._ended:
            await self._receive()
        return self._ended[job]

    async def _ask(self, request: Message) -> tuple[object, ...]:
        serial = next(self._connection.outgoing_serial)
        await self._connection.send(request, serial=serial)
        while True:
            answer = await self._receive()
            if answer.header.fields.get(HeaderFields.reply_serial) == serial:
                break
        if answer.header.message_type is MessageType.error:
            name = str(answer.header.fields.get(HeaderFields.error_name, ""))
            raise SystemdError(name, f"systemd: {': '.join(map(str, answer.body)) or name}")
        body: tuple[object, ...] = answer.body
        return body

    async def _receive(self) -> Message:
        try:
            message = await self._connection.receive()
        except _UNREADABLE as error:
            unreadable = f"systemd cannot be asked: a message cannot be read: {error!r}"
            raise SystemdError("", unreadable) from error
        fields = message.header.fields
        is_to_all = HeaderFields.destination not in fields
        if is_to_all and fields.get(HeaderFields.member) == _JOB_REMOVED:
            _, job, _, result = message.body
            self._ended[job] = result
        return message


@asynccontextmanager
async def _exchange(bus: str, private_socket: str) -> AsyncIterator[_Exchange]:
    """Hold a connection for one exchange, of limited time; raises SystemdError if it breaks."""
    # A bus tells that systemd is away; systemd's own socket breaks instead.
    if_broken = ""
    try:
        with trio.fail_after(_TIMEOUT_SECONDS):
            stream, has_bus = await _connect(bus, private_socket)
            if_broken = "" if has_bus else _AWAY[0]
            async with stream:
                await _authenticate(stream, has_bus=has_bus)
                exchange = _Exchange(DBusConnection(stream.socket), has_bus=has_bus)
                await exchange.greet()
                yield exchange
    except trio.TooSlowError as error:
        late = f"systemd cannot be asked: no answer for {_TIMEOUT_SECONDS:g} s"
        raise SystemdError("", late) from error
    except _BROKEN as error:
        raise SystemdError(if_broken, f"systemd cannot be asked: {error}") from error


async def _connect(bus: str, private_socket: str) -> tuple[trio.SocketStream, bool]:
    """Connect to the bus, or else to systemd itself; returns whether it is the bus.

    Raises the OSError of the bus where neither can be had.
    """
    try:
        return await trio.open_unix_socket(get_bus(bus)), True
    except OSError:
        with suppress(OSError):
            return await trio.open_unix_socket(private_socket), False
        raise


async def _authenticate(stream: trio.SocketStream, *, has_bus: bool) -> None:
    """Tell the other side our user id. jeepney's own way spins when a bus hangs up meanwhile.

    systemd itself is told at once that we begin: what it read together with that word, it would
    leave until more comes.
    """
    await stream.send_all(b"\0")
    authenticator = Authenticator(inc_null_byte=False)
    for line in authenticator:
        await stream.send_all(line if has_bus else line + BEGIN)
        if not (answer := await stream.receive_some()):
            raise trio.EndOfChannel("the bus has closed the connection")
        authenticator.feed(answer)
    if has_bus:
        await stream.send_all(BEGIN)
