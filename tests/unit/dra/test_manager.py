"""Claims of pods: when their drivers are asked, what is written down, what containers get."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from lab.dra_driver import CDI_KIND, NAME
from tests.unit.dra.nodes import ClaimNode, Objects, claim_node, claim_pod
from trio_kubelet.devices.allocation import NOTHING_ALLOCATED
from trio_kubelet.dra import ClaimsAwaitedError
from trio_kubelet.dra import records as records_module
from trio_kubelet.dra.driver import CALLS_AT_ONCE, CALLS_OF_NAMESPACE, MAX_DEVICES
from trio_kubelet.dra.manager import MAX_TOLD
from trio_kubelet.dra.records import CHECKPOINT
from trio_kubelet.errors import ConfigError, PreparationError
from trio_kubelet.k8s import (
    AllocatedClaimStatus,
    Container,
    ContainerExtendedResourceRequest,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodStatus,
    ResourceClaim,
    ResourceRequirements,
)

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimNode:
    return claim_node(tmp_path, monkeypatch)


def cdi(node: ClaimNode, pod: Pod, number: int = 0) -> Sequence[str]:
    container = pod.spec.containers[number]
    return node.manager.added(pod, container, NOTHING_ALLOCATED).cdi_devices


async def refusal(node: ClaimNode, pod: Pod) -> str:
    """Why a pod waits."""
    with pytest.raises(ClaimsAwaitedError) as raised:
        await node.manager.prepare(pod, is_running=False)
    assert raised.value.containers == ["main"]
    return str(raised.value)


def on_disk(node: ClaimNode) -> dict[str, list[str]]:
    """The pods of each claim, as the file says."""
    data = json.loads(json.loads((node.folder / CHECKPOINT).read_text())["Data"])
    return {each["ClaimName"]: sorted(each["PodUIDs"]) for each in data["ClaimInfoStateList"]}


async def test_a_pod_without_claims_asks_nobody(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    pod = claim_pod("u")
    await node.manager.prepare(pod, is_running=False)
    await node.manager.release("u")
    assert not (node.folder / CHECKPOINT).exists()
    assert cdi(node, pod) == ()


async def test_claims_are_prepared_in_one_call_and_unprepared_after_the_pod(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a", "b")
    node.objects.add("a", "u")
    node.objects.add("b", "u")
    with node.registered(driver):
        await node.manager.prepare(pod, is_running=False)
        await node.manager.prepare(pod, is_running=False)
        (call,) = driver.calls(PREPARE)
        assert call["claims"] == ["uid-a", "uid-b"]
        assert cdi(node, pod) == (f"{CDI_KIND}=uid-a", f"{CDI_KIND}=uid-b")
        assert on_disk(node) == {"a": ["u"], "b": ["u"]}
        assert node.manager.in_use() == {"<any>": 2, NAME: 2}
        node.objects.claims.clear()
        await node.manager.release("u")
        await node.manager.release("u")
    assert len(driver.calls(UNPREPARE)) == 1
    assert driver.prepared() == set()
    assert on_disk(node) == {}


async def test_what_is_to_be_asked_is_on_the_disk_before_the_call(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a")
    node.objects.add("a", "u")
    driver.set_faults(**{PREPARE: {"hang": True}})
    with node.registered(driver):
        with trio.move_on_after(1):
            await node.manager.prepare(pod, is_running=False)
        assert on_disk(node) == {"a": ["u"]}
        with pytest.raises(ConfigError, match="is not prepared"):
            cdi(node, pod)
        await node.manager.release("u")
    assert driver.prepared() == set()


async def test_a_claim_that_pods_share_is_prepared_once_and_until_the_last(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver = node.lab_driver()
    node.objects.add("a", "u", "v")
    with node.registered(driver):
        async with trio.open_nursery() as nursery:
            for uid in ("u", "v"):
                nursery.start_soon(prepare, node, claim_pod(uid, "a"))
        assert len(driver.calls(PREPARE)) == 1
        assert on_disk(node) == {"a": ["u", "v"]}
        await node.manager.release("u")
        assert driver.prepared() == {"uid-a"}
        assert on_disk(node) == {"a": ["v"]}
        await node.manager.release("v")
    assert driver.prepared() == set()


async def prepare(node: ClaimNode, pod: Pod) -> None:
    await node.manager.prepare(pod, is_running=False)


async def test_a_pod_waits_for_its_driver_and_is_told_when_it_comes(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a")
    node.objects.add("a", "u")
    assert await refusal(node, pod) == f"DRA driver {NAME} is not registered"
    assert node.manager.is_new_wait("u")
    await refusal(node, pod)
    assert not node.manager.is_new_wait("u"), "it is told of once"
    with node.registered(driver):
        assert node.told == ["u"]
        await node.manager.prepare(pod, is_running=False)
    with pytest.raises(PreparationError, match="is not registered") as raised:
        await node.manager.release("u")
    assert raised.value.reason == "FailedSync"
    with node.registered(driver):
        assert node.told == ["u", "u"]
        await node.manager.release("u")
    assert driver.prepared() == set()


async def test_a_pod_whose_driver_was_never_asked_ends_without_it_after_a_restart(
    node: ClaimNode, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a", "b")
    node.objects.add("a", "u")
    node.objects.add("b", "u", drivers=(NAME, "other.example.com"))
    with node.registered(driver):
        told = await refusal(node, pod)
    assert told == "DRA driver other.example.com is not registered"
    after = claim_node(node.folder, monkeypatch, node.objects)
    await after.manager.records.load()
    assert "not registered" in await refusal(after, pod)
    await after.manager.release("u")
    assert driver.prepared() == set()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"fail": "no"}, "NodePrepareResources: rpc error: code = Unknown desc = no"),
        ({"answer": "broken"}, "NodePrepareResources failed for ResourceClaim default/a: broken"),
        ({"skip": True}, "NodePrepareResources skipped ResourceClaim default/a"),
        (
            {"devices": MAX_DEVICES + 1},
            "NodePrepareResources answered for ResourceClaim default/a 257 devices, must be at "
            "most 256",
        ),
    ],
)
async def test_a_driver_that_fails_is_asked_again(
    node: ClaimNode,
    autojump_clock: trio.testing.MockClock,
    fault: dict[str, object],
    words: str,
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a")
    node.objects.add("a", "u")
    driver.set_faults(**{PREPARE: fault})
    with node.registered(driver):
        assert await refusal(node, pod) == words
        driver.set_faults()
        await node.manager.prepare(pod, is_running=False)
        driver.set_faults(**{UNPREPARE: {"answer": "stuck"}})
        with pytest.raises(PreparationError, match="stuck"):
            await node.manager.release("u")
        assert on_disk(node) == {"a": ["u"]}
        driver.set_faults()
        await node.manager.release("u")
    assert on_disk(node) == {}
    assert driver.prepared() == set()


async def test_a_driver_that_does_not_answer_holds_nobody_for_longer_than_its_deadline(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, other = node.lab_driver(), node.lab_driver("other.example.com")
    node.objects.add("a", "u", drivers=(NAME, "other.example.com"))
    driver.set_faults(**{PREPARE: {"hang": True}})
    with node.registered(driver), node.registered(other):
        assert "DeadlineExceeded" in await refusal(node, claim_pod("u", "a"))
        assert trio.current_time() < 60
        assert other.prepared() == {"uid-a"}
        await node.manager.release("u")
    assert other.prepared() == driver.prepared() == set()


async def test_a_restarted_agent_asks_again_for_a_pod_that_does_not_run(
    node: ClaimNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a")
    node.objects.add("a", "u")
    with node.registered(driver):
        await node.manager.prepare(pod, is_running=False)
    again = claim_node(tmp_path, monkeypatch, Objects())
    again.reachable.update(node.reachable)
    await again.manager.records.load()
    assert again.manager.records.uids() == {"u"}
    await again.manager.prepare(pod, is_running=True)
    assert cdi(again, pod) == (f"{CDI_KIND}=uid-a",)
    assert len(driver.calls(PREPARE)) == 1, "what runs is not asked for again"
    with again.registered(driver):
        await again.manager.prepare(pod, is_running=False)
        assert len(driver.calls(PREPARE)) == 2, "the machine may have been started anew"
        assert again.objects.asked == 0, "the record has all that is needed"
        await again.manager.release("u")
    assert driver.prepared() == set()


async def test_a_claim_must_be_allocated_reserved_and_the_one_that_is_in_use(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a")
    with node.registered(driver):
        assert "not found" in await refusal(node, pod)
        node.objects.add("a", "v")
        assert await refusal(node, pod) == (
            "pod u (u) is not allowed to use ResourceClaim a (uid-a)"
        )
        unallocated = evolve(node.objects.claims["a"], status=AllocatedClaimStatus())
        node.objects.claims["a"] = unallocated
        assert await refusal(node, pod) == "ResourceClaim default/a is not allocated"
        assert node.manager.records.uids() == set()
        node.objects.add("a", "v", "u")
        await node.manager.prepare(claim_pod("v", "a"), is_running=False)
        node.objects.add("a", "u", uid="another")
        assert "with UID uid-a is still in use" in await refusal(node, pod)
        await node.manager.release("v")
        await node.manager.prepare(pod, is_running=False)
    assert driver.prepared() == {"another"}


async def test_a_claim_of_a_template_has_the_name_that_the_status_tells(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a", "none")
    claims = tuple(
        PodResourceClaim(name=name, resource_claim_template_name="t") for name in ("a", "none")
    )
    pod = evolve(pod, spec=evolve(pod.spec, resource_claims=claims))
    with node.registered(driver):
        assert "resource claim a: the claim has not been created yet" in await refusal(node, pod)
        told = (
            PodResourceClaimStatus(name="a", resource_claim_name="a-made"),
            PodResourceClaimStatus(name="none"),
        )
        pod = evolve(pod, status=PodStatus(resource_claim_statuses=told))
        node.objects.add("a-made", "u")
        assert "was not created for pod default/u" in await refusal(node, pod)
        owner = OwnerReference(kind="Pod", name="u", uid="u", controller=True)
        node.objects.add("a-made", "u", metadata={"owner_references": (owner,)})
        await node.manager.prepare(pod, is_running=False)
    assert cdi(node, pod) == (f"{CDI_KIND}=uid-a-made",)


async def test_containers_have_the_devices_of_the_requests_that_they_name(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver = node.lab_driver(requests=("gpu/large",))
    containers = [
        Container(
            name=name,
            resources=ResourceRequirements(claims=(ResourceClaim(name="a", request=name),)),
        )
        for name in ("gpu", "nic")
    ]
    pod = claim_pod("u", "a", containers=[*containers, Container(name="neither")])
    node.objects.add("a", "u")
    with node.registered(driver):
        await node.manager.prepare(pod, is_running=False)
    assert [cdi(node, pod, number) for number in range(3)] == [(f"{CDI_KIND}=uid-a",), (), ()]


async def test_extended_resources_have_the_devices_of_their_claim(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, pod = node.lab_driver(requests=("r-0",)), claim_pod("u")
    mapping = ContainerExtendedResourceRequest(
        container_name="main", request_name="r-0", resource_name="example.com/gpu"
    )
    status = PodExtendedResourceClaimStatus(
        request_mappings=(mapping,), resource_claim_name="extended"
    )
    pod = evolve(pod, status=PodStatus(extended_resource_claim_status=status))
    node.objects.add("extended", "u")
    with node.registered(driver):
        await node.manager.prepare(pod, is_running=False)
        assert cdi(node, pod) == (f"{CDI_KIND}=uid-extended",)


async def test_a_driver_of_v1beta1_is_asked_in_its_version(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver = node.lab_driver(versions=("v1beta1.DRAPlugin",))
    node.objects.add("a", "u")
    with node.registered(driver):
        await node.manager.prepare(claim_pod("u", "a"), is_running=False)
    assert driver.prepared() == {"uid-a"}


async def test_pods_that_share_claims_do_not_wait_for_one_another_for_ever(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver = node.lab_driver()
    for name in ("a", "b"):
        node.objects.add(name, "u", "v")
    with node.registered(driver):
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(prepare, node, claim_pod("u", "a", "b"))
                nursery.start_soon(prepare, node, claim_pod("v", "b", "a"))
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for uid in ("u", "v"):
                    nursery.start_soon(node.manager.release, uid)
    assert driver.prepared() == set()


async def test_claims_of_a_namespace_that_hang_hold_up_no_other_namespace(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, others = node.lab_driver(), 2 * CALLS_AT_ONCE
    driver.set_faults(**{PREPARE: {"hang": True}})
    for number in range(others):
        node.objects.add(f"a{number}", f"u{number}")
    node.objects.add("b", "v")
    good = evolve(claim_pod("v", "b"), metadata=ObjectMeta(name="v", namespace="good", uid="v"))
    with node.registered(driver):
        async with trio.open_nursery() as nursery:
            for number in range(others):
                nursery.start_soon(prepare, node, claim_pod(f"u{number}", f"a{number}"))
            await trio.testing.wait_all_tasks_blocked()
            assert len(driver.calls(PREPARE)) == CALLS_OF_NAMESPACE
            driver.set_faults()
            with trio.fail_after(1):
                await prepare(node, good)
            nursery.cancel_scope.cancel()


async def test_what_all_claims_of_a_pod_wait_for_is_told_once(
    node: ClaimNode, autojump_clock: trio.testing.MockClock
) -> None:
    driver, names = node.lab_driver(), [f"claim-{number}" for number in range(100)]
    for name in names:
        node.objects.add(name, "u")
    driver.set_faults(**{PREPARE: {"fail": "no power"}})
    with node.registered(driver):
        why = await refusal(node, claim_pod("u", *names))
        assert why == "NodePrepareResources: rpc error: code = Unknown desc = no power"
        driver.set_faults(**{PREPARE: {"answer": "x" * 500}})
        why = await refusal(node, claim_pod("u", *names))
        assert len(why) == MAX_TOLD + 1


async def test_a_claim_with_more_than_can_be_recorded_waits_and_is_undone(
    node: ClaimNode, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, pod = node.lab_driver(), claim_pod("u", "a")
    node.objects.add("a", "u")
    driver.set_faults(**{PREPARE: {"devices": 20}})
    monkeypatch.setattr(records_module, "MAX_RECORDED_BYTES_OF_NAMESPACE", 1000)
    with node.registered(driver):
        assert "has 1000 bytes, which is the limit" in await refusal(node, pod)
        driver.set_faults()
        await prepare(node, pod)
        await node.manager.release("u")
    assert driver.prepared() == set()
