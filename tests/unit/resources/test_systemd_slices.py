"""Slices over D-Bus, against a small systemd that remembers what it was asked."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.trio import DBusConnection

from tests.unit.resources.fake_cgroups import FakeV2
from tests.unit.resources.pods import container, pod
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.resources import (
    CgroupConfig,
    CgroupDriver,
    Cgroups,
    systemd_slices,
)
from trio_kubelet.resources.cgroup_names import CgroupName
from trio_kubelet.resources.systemd_slices import SystemdSlices, slice_properties, value_properties

UNLIMITED = 2**64 - 1
NAME = CgroupName(("kubepods", "burstable", "pod12-34"))
CONFIG = CgroupConfig(cpu_shares=1024, memory_limit_bytes=4096)


@pytest.mark.parametrize(
    ("config", "version", "expected"),
    [
        (CgroupConfig(), 1, {}),
        (CgroupConfig(cpu_shares=512), 1, {"CPUShares": 512}),
        (CgroupConfig(cpu_shares=512), 2, {"CPUWeight": 59}),
        (CgroupConfig(memory_limit_bytes=4096), 1, {"MemoryLimit": 4096}),
        (CgroupConfig(memory_limit_bytes=4096), 2, {"MemoryMax": 4096}),
        (CgroupConfig(memory_min_bytes=1, memory_low_bytes=2), 1, {}),
        (
            CgroupConfig(memory_min_bytes=1, memory_low_bytes=2),
            2,
            {"MemoryMin": 1, "MemoryLow": 2},
        ),
        (CgroupConfig(pids_limit=7), 2, {"TasksMax": 7}),
        (
            CgroupConfig(cpu_quota_us=20_000, cpu_period_us=100_000),
            2,
            {"CPUQuotaPeriodUSec": 100_000, "CPUQuotaPerSecUSec": 200_000},
        ),
        pytest.param(
            CgroupConfig(cpu_quota_us=1234, cpu_period_us=100_000),
            2,
            {"CPUQuotaPeriodUSec": 100_000, "CPUQuotaPerSecUSec": 20_000},
            id="a quota is rounded up to a whole percent",
        ),
        (
            CgroupConfig(cpu_quota_us=-1, cpu_period_us=100_000),
            2,
            {"CPUQuotaPeriodUSec": 100_000, "CPUQuotaPerSecUSec": UNLIMITED},
        ),
    ],
)
def test_values(config: CgroupConfig, version: int, expected: dict[str, int]) -> None:
    properties = value_properties(config, version)
    assert {name: value for name, (_, value) in properties} == expected
    assert {signature for _, (signature, _) in properties} <= {"t"}


def test_a_slice_wants_its_parent_and_counts_everything() -> None:
    properties = dict(slice_properties(NAME, 2))
    assert properties["Wants"] == ("as", ["kubepods-burstable.slice"])
    assert properties["DefaultDependencies"] == ("b", False)
    assert properties["IOAccounting"] == ("b", True)
    assert "BlockIOAccounting" in dict(slice_properties(NAME, 1))
    assert dict(slice_properties(CgroupName(("a",)), 2))["Wants"] == ("as", ["-.slice"])


class FakeSystemd:
    """A bus with nothing but systemd's manager on it; or its private socket, with no bus."""

    def __init__(self, *, has_bus: bool = True) -> None:
        self.has_bus = has_bus
        self.connections_to_break = 0
        self.calls: list[tuple[str, Any]] = []
        self.errors: dict[str, str] = {}
        self.job_result = "done"
        self.hang_up_on = ""
        self.silent_on = ""
        self.calls_without_reply = 0
        self.passes_on = b""
        self.says_to_strangers = b"OK 0123456789abcdef\r\n"

    async def serve(self, stream: trio.SocketStream) -> None:
        if not await self._lets_in(stream):
            return
        connection = DBusConnection(stream.socket)
        jobs = itertools.count(1)
        while True:
            try:
                message = await connection.receive()
            except trio.EndOfChannel:
                return
            method = message.header.fields[HeaderFields.member]
            self.calls.append((method, message.body))
            if method == self.hang_up_on or self.connections_to_break:
                self.connections_to_break = max(0, self.connections_to_break - 1)
                await connection.aclose()
                return
            if method == self.silent_on:
                continue
            await self._answer(connection, message, method, next(jobs))

    async def _answer(
        self, connection: DBusConnection, message: Message, method: str, number: int
    ) -> None:
        if self.passes_on:
            await connection.socket.send(self.passes_on)
        if method in self.errors:
            await connection.send(new_error(message, self.errors[method], "s", ("refused",)))
            return
        if not self.has_bus and method in ("Hello", "AddMatch"):
            error = "org.freedesktop.DBus.Error.UnknownObject"
            await connection.send(new_error(message, error, "s", ("there is no bus",)))
            return
        if method == "Hello":
            await connection.send(new_method_return(message, "s", (":1.7",)))
            return
        if self.calls_without_reply:
            self.calls_without_reply -= 1
            error = "org.freedesktop.DBus.Error.NoReply"
            await connection.send(new_error(message, error, "s", ("recipient disconnected",)))
            return
        if method not in ("StartTransientUnit", "StopUnit"):
            await connection.send(new_method_return(message))
            return
        manager = DBusAddress(
            "/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager"
        )
        # Jobs of others end, too; and ours may end before its number is known.
        for job, result in ((number + 100, "failed"), (number, self.job_result)):
            body = (job, f"/job/{job}", "x.slice", result)
            await connection.send(new_signal(manager, "JobRemoved", "uoss", body))
        # A user of the machine may say anything to a connection, but to nobody else.
        for signature, said in (("uoss", (number, f"/job/{number}", "x", "failed")), ("s", ("x",))):
            forged = new_signal(manager, "JobRemoved", signature, said)
            forged.header.fields[HeaderFields.destination] = ":1.7"
            await connection.send(forged)
        await connection.send(new_method_return(message, "o", (f"/job/{number}",)))

    async def _lets_in(self, stream: trio.SocketStream) -> bool:
        received = b""
        while not received.endswith(b"BEGIN\r\n"):
            part = await stream.receive_some()
            received += part
            if b"AUTH" in part:
                # systemd leaves unread what comes in one piece with a later BEGIN.
                assert self.has_bus or b"BEGIN" in part
                await stream.send_all(self.says_to_strangers)
            if not part or not self.says_to_strangers:
                await stream.aclose()
                return False
        return True

    def asked(self, method: str) -> list[Any]:
        return [body for name, body in self.calls if name == method]


@asynccontextmanager
async def systemd(
    tmp_path: Path, *, has_bus: bool = True
) -> AsyncIterator[tuple[FakeSystemd, SystemdSlices]]:
    fake = FakeSystemd(has_bus=has_bus)
    bus, private_socket = str(tmp_path / "bus"), str(tmp_path / "private")
    path = bus if has_bus else private_socket
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(path)
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, fake.serve, [trio.SocketListener(listener)])
        with trio.fail_after(60):
            yield fake, SystemdSlices(2, f"unix:path={bus}", private_socket)
        nursery.cancel_scope.cancel()


async def test_a_slice_is_started_with_its_values(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        await slices.start(NAME, CONFIG)
        ((name, mode, properties, _),) = fake.asked("StartTransientUnit")
    assert (name, mode) == ("kubepods-burstable-pod12_34.slice", "replace")
    assert ("MemoryMax", ("t", 4096)) in properties
    assert ("CPUWeight", ("t", 100)) in properties


async def test_a_slice_that_runs_gets_the_values(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        fake.errors["StartTransientUnit"] = "org.freedesktop.systemd1.UnitExists"
        await slices.start(NAME, CONFIG)
        ((name, runtime, properties),) = fake.asked("SetUnitProperties")
    assert (name, runtime) == ("kubepods-burstable-pod12_34.slice", True)
    assert dict(properties).keys() == {"MemoryMax", "CPUWeight"}


async def test_a_slice_is_stopped(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        await slices.stop(NAME)
        assert fake.asked("StopUnit") == [("kubepods-burstable-pod12_34.slice", "replace")]
        fake.errors["StopUnit"] = "org.freedesktop.systemd1.NoSuchUnit"
        await slices.stop(NAME)


async def test_a_refusal_is_an_error_with_systemds_words(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        fake.errors["StartTransientUnit"] = "org.freedesktop.DBus.Error.AccessDenied"
        with pytest.raises(BusError, match="refused") as caught:
            await slices.start(NAME, CONFIG)
    assert caught.value.name == "org.freedesktop.DBus.Error.AccessDenied"


async def test_a_job_that_fails_is_an_error(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        fake.job_result = "timeout"
        with pytest.raises(BusError, match="ended as timeout"):
            await slices.start(NAME, CONFIG)


@pytest.mark.parametrize("method", ["Hello", "StartTransientUnit"])
async def test_a_bus_that_hangs_up_is_an_error_with_words(tmp_path: Path, method: str) -> None:
    async with systemd(tmp_path) as (fake, slices):
        fake.hang_up_on = method
        with pytest.raises(BusError, match=r"systemd cannot be asked: \w+"):
            await slices.start(NAME, CONFIG)


async def test_a_systemd_that_takes_too_long_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_slices, "_TIMEOUT_SECONDS", 0.1)
    async with systemd(tmp_path) as (fake, slices):
        fake.silent_on = "StartTransientUnit"
        with pytest.raises(BusError, match=r"systemd cannot be asked: no answer for 0\.1 s"):
            await slices.start(NAME, CONFIG)


@pytest.mark.parametrize(
    ("said", "words"), [(b"REJECTED EXTERNAL\r\n", "Authentication failed"), (b"", r"\w")]
)
async def test_a_bus_that_lets_nobody_in_is_an_error(
    tmp_path: Path, said: bytes, words: str
) -> None:
    async with systemd(tmp_path) as (fake, slices):
        fake.says_to_strangers = said
        with pytest.raises(BusError, match=f"systemd cannot be asked: {words}"):
            await slices.start(NAME, CONFIG)


async def test_the_ends_of_jobs_are_heard_of_from_systemd_alone(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        await slices.start(NAME, CONFIG)
        ((rule,),) = fake.asked("AddMatch")
    assert "sender='org.freedesktop.systemd1'" in rule


async def test_a_message_of_a_stranger_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    signal = new_signal(DBusAddress("/a", interface="a.b"), "C", "u", (7,))
    signal.header.fields[HeaderFields.destination] = ":1.7"
    # A file that comes without one: what says so is as long as a number.
    file = signal.serialise(serial=1).replace(b"\x01u\0", b"\x01h\0")
    async with systemd(tmp_path) as (fake, slices):
        fake.passes_on = file
        with pytest.raises(BusError, match="systemd cannot be asked: a message cannot be read"):
            await slices.start(NAME, CONFIG)


async def test_a_systemd_that_executed_itself_anew_is_asked_again(tmp_path: Path) -> None:
    async with systemd(tmp_path) as (fake, slices):
        for ask in (
            partial(slices.start, NAME, CONFIG),
            partial(slices.set_values, NAME, CONFIG),
            partial(slices.stop, NAME),
        ):
            fake.calls_without_reply = 2
            await ask()
            assert not fake.calls_without_reply
    asked = ("StartTransientUnit", "SetUnitProperties", "StopUnit")
    assert {method for method, _ in fake.calls} >= set(asked)


async def test_a_systemd_without_a_bus_is_asked_at_its_own_socket(tmp_path: Path) -> None:
    async with systemd(tmp_path, has_bus=False) as (fake, slices):
        await slices.start(NAME, CONFIG)
        await slices.set_values(NAME, CONFIG)
        await slices.stop(NAME)
    asked = ["StartTransientUnit", "SetUnitProperties", "StopUnit"]
    assert [method for method, _ in fake.calls] == asked


async def test_a_systemd_that_hangs_up_at_its_own_socket_is_asked_again(tmp_path: Path) -> None:
    async with systemd(tmp_path, has_bus=False) as (fake, slices):
        fake.connections_to_break = 2
        await slices.start(NAME, CONFIG)
    assert len(fake.asked("StartTransientUnit")) == 3


async def test_a_machine_with_neither_bus_nor_systemd_is_an_error(tmp_path: Path) -> None:
    slices = SystemdSlices(2, f"unix:path={tmp_path}/absent", f"{tmp_path}/absent-too")
    with pytest.raises(BusError, match="No such file"):
        await slices.start(NAME, CONFIG)


async def test_what_is_left_in_a_pods_slice_is_killed_before_systemd_is_to_stop_it(
    tmp_path: Path,
) -> None:
    parents = ("kubepods.slice", "kubepods.slice/kubepods-besteffort.slice")
    path = f"{parents[-1]}/kubepods-besteffort-podu.slice"
    tree = FakeV2(tmp_path, "cpu memory", (*parents, path)).tree
    async with systemd(tmp_path) as (fake, slices):
        cgroups = Cgroups(tree, KubeletConfiguration(), driver=CgroupDriver.SYSTEMD, slices=slices)
        fake.job_result = "timeout"
        with pytest.raises(BusError):
            await cgroups.remove("u")
    assert (tmp_path / path / "cgroup.kill").read_text() == "1"


async def test_systemd_stops_the_slices_that_pods_had_before_the_driver_was_changed(
    tmp_path: Path,
) -> None:
    tree = FakeV2(tmp_path, "cpu memory", ("kubepods.slice",)).tree
    async with systemd(tmp_path) as (fake, slices):
        await Cgroups(
            tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS, slices=slices
        ).remove_cgroups_of_other_driver()
    assert fake.asked("StopUnit") == [("kubepods.slice", "replace")]


async def test_a_pods_slice_that_systemd_made_too_late_still_gets_all_its_values(
    tmp_path: Path,
) -> None:
    parents = ("kubepods.slice", "kubepods.slice/kubepods-besteffort.slice")
    tree = FakeV2(tmp_path, "cpu memory", parents).tree
    folder = tmp_path / parents[-1] / "kubepods-besteffort-podu.slice"
    best_effort = pod(container(), uid="u")
    async with systemd(tmp_path) as (fake, slices):
        cgroups = Cgroups(tree, KubeletConfiguration(), driver=CgroupDriver.SYSTEMD, slices=slices)
        fake.job_result = "timeout"
        with pytest.raises(BusError):
            await cgroups.ensure(best_effort)
        folder.mkdir()
        fake.job_result = "done"
        for _ in range(2):
            await cgroups.ensure(best_effort)
        assert len(fake.asked("StartTransientUnit")) == 2
    assert (folder / "cpu.weight").read_text() == "1"


async def test_a_pods_slice_that_a_killed_agent_had_only_started_gets_all_its_values(
    tmp_path: Path,
) -> None:
    parents = ("kubepods.slice", "kubepods.slice/kubepods-besteffort.slice")
    path = f"{parents[-1]}/kubepods-besteffort-podu.slice"
    tree = FakeV2(tmp_path, "cpu memory pids", (*parents, path)).tree
    configuration = KubeletConfiguration(pod_pids_limit=77)
    async with systemd(tmp_path) as (fake, slices):
        cgroups = Cgroups(tree, configuration, driver=CgroupDriver.SYSTEMD, slices=slices)
        await cgroups.ensure(pod(container(), uid="u"))
        ((name, _mode, properties, _units),) = fake.asked("StartTransientUnit")
    assert name == "kubepods-besteffort-podu.slice"
    assert ("TasksMax", ("t", 77)) in properties
    assert (tmp_path / path / "pids.max").read_text() == "77"
    assert (tmp_path / path / "cpu.weight").read_text() == "1"
