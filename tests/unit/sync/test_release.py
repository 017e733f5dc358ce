"""A pod that has stopped gives back what it held, where a part of it cannot be given back."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from tests.unit.devices.nodes import no_devices
from tests.unit.dra.nodes import no_claims
from tests.unit.sync.syncer_parts import FailingOnce, Others, make_parts
from trio_kubelet.devices.checkpoint import DeviceRecord
from trio_kubelet.dra.checkpoint import ClaimRecord
from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.sync.pod_syncer import SyncDependencies
from trio_kubelet.sync.pod_task import UnfinishedError
from trio_kubelet.telemetry import Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))
GPU = DeviceRecord(pod_uid="u", container="c", resource="a.org/gpu", devices={-1: ("d0",)})
CLAIM = ClaimRecord(uid="claim", namespace="shop", name="gpus", pods=frozenset({"u"}))
BUSY = "/v is busy"

Holding = Callable[[Others], SyncDependencies]


class Hanging(Others):
    """Volumes that are not unmounted for as long as a server is away."""

    async def unmount(self, pod: Pod) -> None:
        await trio.sleep_forever()


class BusyCgroup(Others):
    """A process in the cgroup that nobody can kill."""

    async def remove(self, pod: Pod | str) -> None:
        raise PreparationError("FailedKillPod", "cgroup is busy")


@pytest.fixture
def journal() -> Journal:
    return Journal(TrioClock())


@pytest.fixture
def holding(tmp_path: Path, journal: Journal) -> Holding:
    """Makes the parts of a node on which the pod has a device and a claim."""

    def make(others: Others) -> SyncDependencies:
        devices, claims = no_devices(tmp_path), no_claims(journal, tmp_path)
        devices.records.put(GPU)
        claims.records.put(CLAIM)
        parts = make_parts(FailingOnce(), others, journal)
        return evolve(parts, devices=devices, claims=claims)

    return make


def held(parts: SyncDependencies) -> list[str]:
    devices = [record.resource for record in parts.devices.records.of_pod("u")]
    return devices + [record.name for record in parts.claims.records.of_pod("u")]


async def test_a_volume_that_is_busy_keeps_neither_devices_nor_claims(holding: Holding) -> None:
    others = Others()
    others.stuck = BUSY
    parts = holding(others)
    with pytest.raises(UnfinishedError, match=BUSY):
        await parts.open_syncer(POD).release(POD)
    assert held(parts) == []


async def test_a_volume_that_hangs_keeps_neither_devices_nor_claims(
    holding: Holding, autojump_clock: MockClock
) -> None:
    parts = holding(Hanging())
    with trio.move_on_after(3600) as waited:
        await parts.open_syncer(POD).release(POD)
    assert waited.cancelled_caught
    assert held(parts) == []


async def test_devices_and_claims_are_kept_while_something_is_in_the_cgroup(
    holding: Holding,
) -> None:
    others = BusyCgroup()
    parts = holding(others)
    with pytest.raises(UnfinishedError, match="cgroup is busy"):
        await parts.open_syncer(POD).release(POD)
    assert held(parts) == ["a.org/gpu", "gpus"]
    assert others.removed == ["volumes of u"]


async def test_a_driver_that_is_away_keeps_no_volume_and_all_that_is_in_the_way_is_told(
    holding: Holding, journal: Journal
) -> None:
    others = Others()
    parts = holding(others)
    parts.claims.records.put(evolve(CLAIM, drivers={"a.org": None}))
    syncer = parts.open_syncer(POD)
    away = "unprepare dynamic resources: DRA driver a.org is not registered"
    for others.stuck in ("", BUSY):
        with pytest.raises(UnfinishedError):
            await syncer.release(POD)
    assert "volumes of u" in others.removed
    told = [(entry.event, entry.cause) for entry in journal.entries("shop/web")]
    assert told == [
        ("FailedSync", f"error killing pod: {away}"),
        ("FailedKillPod", f"error killing pod: [{BUSY}, {away}]"),
    ]
