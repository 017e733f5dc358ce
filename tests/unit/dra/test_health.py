"""How the devices of claims are, as drivers tell: what statuses show, and whom news wakes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from lab.dra_driver import CDI_KIND, NAME
from tests.unit.dra.nodes import ClaimNode, claim_node, claim_pod
from trio_kubelet.dra.checkpoint import ClaimRecord, PreparedDevice
from trio_kubelet.dra.health import MAX_DEVICES, TIMEOUT_SECONDS, told_health
from trio_kubelet.k8s import (
    Container,
    ContainerExtendedResourceRequest,
    Pod,
    PodExtendedResourceClaimStatus,
    PodStatus,
    ResourceClaim,
    ResourceRequirements,
)
from trio_kubelet.rpc.stubs import v1 as wire

SOON = 1.0
POD = claim_pod("u", "a")
RESOURCE = f"{CDI_KIND}=uid-a"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimNode:
    node = claim_node(tmp_path, monkeypatch)
    for name in ("a", "b"):
        node.objects.add(name, "u", "v")
    return node


@asynccontextmanager
async def following(node: ClaimNode, *, with_messages: bool = True) -> AsyncIterator[None]:
    """The node follows what its drivers say."""
    async with trio.open_nursery() as nursery:
        run = partial(node.manager.health.run, with_messages=with_messages)
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def shown(node: ClaimNode, pod: Pod = POD) -> dict[str, list[tuple[str, list[tuple[str, str]]]]]:
    """Names, and health and words of the devices, of each container."""
    told = node.manager.resource_statuses(pod, with_messages=True)
    return {
        name: [
            (status.name, [(str(each.health), each.message) for each in status.resources])
            for status in statuses
        ]
        for name, statuses in told.items()
    }


def health(node: ClaimNode) -> tuple[str, str]:
    """Health and words of the one device of the pod."""
    ((name, (only,)),) = shown(node)["main"]
    assert name == "claim:a"
    return only


async def test_statuses_show_what_a_driver_says_and_news_wakes_the_pods(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver(has_health=True)
    async with following(node):
        assert shown(node) == {}
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            assert health(node) == ("Unknown", "")
            driver.tell_health(device={"health": 2, "message": "hot"}, other={"health": 1})
            await trio.sleep(SOON)
            assert health(node) == ("Unhealthy", "hot")
            assert node.told == ["u"]
            ((status,),) = node.manager.resource_statuses(POD, with_messages=False).values()
            (device,) = status.resources
            assert (device.resource_id, device.message) == (RESOURCE, "")
            await trio.sleep(1000)  # it says the same again and again
            assert health(node) == ("Unhealthy", "hot")
            assert node.told == ["u"]
            driver.tell_health(device={"health": 1})
            await trio.sleep(SOON)
            assert health(node) == ("Healthy", "")
            assert node.told == ["u"] * 2


async def test_nobody_knows_the_health_of_a_device_of_which_nothing_is_said_any_more(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver(has_health=True)
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            driver.tell_health(device={"timeout": 100}, other={"timeout": 20})
            await trio.sleep(SOON)
            driver.set_faults(NodeWatchResources={"mute": True})
            await trio.sleep(100 - 2 * SOON)
            assert health(node) == ("Healthy", "")
            node.told.clear()
            await trio.sleep(3 * SOON)
            assert health(node) == ("Unknown", "")
            assert node.told == ["u"]
            driver.tell_health(device={})
            driver.set_faults()
            await trio.sleep(SOON)
            assert health(node) == ("Healthy", "")
            driver.set_faults(NodeWatchResources={"mute": True})
            await trio.sleep(TIMEOUT_SECONDS - 2 * SOON)
            assert health(node) == ("Healthy", "")
            await trio.sleep(3 * SOON)
            assert health(node) == ("Unknown", "")


async def test_nobody_knows_the_health_of_the_devices_of_a_driver_that_has_gone(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver(has_health=True)
    driver.tell_health(device={"timeout": 1000})
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            await trio.sleep(SOON)
            node.told.clear()
        assert health(node) == ("Unknown", "")
        assert node.told == ["u"]
        await trio.sleep(1000)
        with node.registered(driver):
            await trio.sleep(SOON)
            assert health(node) == ("Healthy", "")


async def test_a_driver_that_breaks_off_is_asked_again_and_its_words_count_meanwhile(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver(has_health=True)
    driver.tell_health(device={"timeout": 60})
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            await trio.sleep(SOON)
            driver.set_faults(NodeWatchResources={"end": True})
            await trio.sleep(40)
            assert health(node) == ("Healthy", "")
            await trio.sleep(3600)
            assert health(node) == ("Unknown", "")
            asked = len(driver.calls("NodeWatchResources"))
            assert 30 < asked < 90, "about once a minute"
            driver.set_faults()
            await trio.sleep(60 + SOON)
            assert health(node) == ("Healthy", "")


async def test_a_driver_that_breaks_off_after_each_answer_is_asked_less_and_less_often(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver(has_health=True)
    driver.tell_health(device={"timeout": 60})
    driver.set_faults(NodeWatchResources={"end_after": True})
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            await trio.sleep(3600)
            assert 30 < len(driver.calls("NodeWatchResources")) < 90, "about once a minute"
            driver.set_faults()
            await trio.sleep(100)
            driver.set_faults(NodeWatchResources={"end": True})
            await trio.sleep(SOON)
            before = len(driver.calls("NodeWatchResources"))
            await trio.sleep(2 * SOON)
            assert len(driver.calls("NodeWatchResources")) > before, "it went well for long"


@pytest.mark.parametrize("with_messages", [True, False])
async def test_health_that_goes_on_changing_is_told_once_a_second(
    node: ClaimNode, autojump_clock: MockClock, with_messages: bool
) -> None:
    driver = node.lab_driver(has_health=True)
    async with following(node, with_messages=with_messages):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            for number in range(300):
                driver.tell_health(device={"message": str(number)})
                await trio.sleep(0.3)
            await trio.sleep(2 * SOON)
            assert health(node) == ("Healthy", "299")
            assert 50 < len(node.told) < 100 if with_messages else node.told == ["u"]


async def test_a_driver_without_the_service_is_asked_once_for_each_version_of_it(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver()
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            await trio.sleep(3600)
            assert health(node) == ("Unknown", "")
    assert len(driver.calls("NodeWatchResources")) == 2


async def test_of_two_sockets_of_a_driver_the_newer_one_is_followed(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    old = node.lab_driver(has_health=True)
    old.tell_health(device={"health": 2, "timeout": 1000})
    async with following(node):
        with node.registered(old):
            await node.manager.prepare(POD, is_running=False)
            await trio.sleep(SOON)
            with node.registered(old):  # in place of a second one
                assert health(node)[0] == "Unhealthy", "what the old one said counts on"
                old.tell_health(device={"health": 1})
                await trio.sleep(SOON)
                assert health(node)[0] == "Healthy"
            old.tell_health(device={"health": 2})
            await trio.sleep(SOON)
            assert health(node)[0] == "Unhealthy"


async def test_a_driver_that_goes_on_and_on_costs_ten_answers_a_second(
    node: ClaimNode, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = node.lab_driver(has_health=True)
    driver.tell_health(**{f"device-{number}": {} for number in range(100)}, device={})
    driver.set_faults(NodeWatchResources={"flood": True})
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            taken = list[int]()
            take = type(node.manager.health)._take

            async def counted(self: object, followed: object, answer: object) -> None:
                taken.append(1)
                await take(self, followed, answer)  # type: ignore[arg-type]

            monkeypatch.setattr(type(node.manager.health), "_take", counted)
            await trio.sleep(100)
            assert 700 < len(taken) <= 1001
            assert health(node) == ("Healthy", "")


def using(name: str, *uses: tuple[str, str]) -> Container:
    claims = tuple(ResourceClaim(name=claim, request=request) for claim, request in uses)
    return Container(name=name, resources=ResourceRequirements(claims=claims))


def put(node: ClaimNode, *devices: PreparedDevice, name: str = "a") -> None:
    node.manager.records.put(
        ClaimRecord(
            uid=f"uid-{name}",
            namespace="default",
            name=name,
            pods=frozenset({"u"}),
            drivers={NAME: devices},
        )
    )


async def test_a_container_shows_the_devices_of_the_requests_that_it_names(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    put(
        node,
        PreparedDevice(pool="p", device="gpu", requests=("gpu/large",), cdi_ids=("k=g", "k=all")),
        PreparedDevice(pool="p", device="nic", requests=("nic",)),
    )
    pod = claim_pod(
        "u",
        "a",
        "b",
        containers=[
            using("all", ("a", ""), ("b", "")),
            using("gpu", ("a", "gpu"), ("a", "gpu")),
            using("none"),
        ],
    )
    told = node.manager.resource_statuses(pod, with_messages=True)
    assert {
        name: [(each.name, [device.resource_id for device in each.resources]) for each in statuses]
        for name, statuses in told.items()
    } == {"all": [("claim:a", ["k=g", f"{NAME}/p/nic"])], "gpu": [("claim:a/gpu", ["k=g"])]}
    assert node.manager.resource_statuses(claim_pod("v", "a"), with_messages=True) == {}


async def test_extended_resources_are_named_as_in_the_spec_of_their_container(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    put(node, PreparedDevice(pool="p", device="gpu", requests=("r-0",), cdi_ids=("k=g",)))
    mapping = ContainerExtendedResourceRequest(
        container_name="main", request_name="r-0", resource_name="example.com/gpu"
    )
    status = PodExtendedResourceClaimStatus(request_mappings=(mapping,), resource_claim_name="a")
    pod = evolve(claim_pod("u"), status=PodStatus(extended_resource_claim_status=status))
    assert shown(node, pod) == {"main": [("example.com/gpu", [("Unknown", "")])]}


def told(*names: str, **health: object) -> Sequence[wire.DeviceHealth]:
    return [
        wire.DeviceHealth(
            device=wire.DeviceIdentifier(pool_name="p", device_name=name),
            **health,  # type: ignore[arg-type]
        )
        for name in names
    ]


def test_what_a_driver_says_is_bounded() -> None:
    many = told(*(f"device-{number}" for number in range(MAX_DEVICES + 5)))
    assert len(told_health(many)) == MAX_DEVICES
    assert told_health(told("x" * 513)) == {}
    ((_, found),) = told_health(told("x", message="m" * 5000)).items()
    assert len(found.message) == 1024


@pytest.mark.parametrize(("seconds", "counts_for"), [(0, 30), (-5, 30), (7, 7), (2**62, 2**62)])
def test_health_counts_for_the_time_that_the_driver_names(seconds: int, counts_for: float) -> None:
    ((_, found),) = told_health(told("x", health_check_timeout_seconds=seconds)).items()
    assert found.seconds == counts_for


async def test_a_driver_has_so_many_devices_with_health_at_a_time(
    node: ClaimNode, autojump_clock: MockClock
) -> None:
    driver = node.lab_driver(has_health=True)
    driver.tell_health(**{f"device-{number}": {"timeout": 50} for number in range(MAX_DEVICES)})
    async with following(node):
        with node.registered(driver):
            await node.manager.prepare(POD, is_running=False)
            await trio.sleep(SOON)
            driver.tell_health(device={})
            await trio.sleep(10 * SOON)
            assert health(node) == ("Unknown", ""), "there is no room"
            await trio.sleep(60)
            assert health(node) == ("Healthy", "")
