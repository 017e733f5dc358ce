"""Which pods get which devices, which wait, which are rejected; and what a restart leaves."""

from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from tests.unit.devices.nodes import (
    device_container,
    device_node,
    device_pod,
    devices,
    with_claim,
)
from trio_kubelet.devices import client as client_module
from trio_kubelet.devices import plugins as plugins_module
from trio_kubelet.devices.allocation import NOTHING_ALLOCATED
from trio_kubelet.devices.holders import ANNOTATION
from trio_kubelet.devices.manager import WAITING, AllocationError, DevicesAwaitedError
from trio_kubelet.devices.plugins import GRACE_SECONDS
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Pod

POD, OTHER = device_pod("u1"), device_pod("u2")
NO_HEALTHY = f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"


async def test_a_pod_gets_what_the_plugin_answers(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        assert node.manager.plugins.amounts() == {RESOURCE: (1, 1)}
        await node.manager.prepare(POD, ())
        given = await node.manager.allocation(POD, POD.spec.containers[0])
        assert given.variables == {"LAB_DEVICES": "dev-0"}
        assert [each.container_path for each in given.devices] == ["/dev/dev-0"]
        assert [each.container_path for each in given.mounts] == ["/lab-device"]
        assert given.annotations == {
            "lab.example.com/devices": "dev-0",
            ANNOTATION: f'[{{"ResourceName":"{RESOURCE}","DeviceIDs":{{"-1":["dev-0"]}}}}]',
        }
        assert [call["ids"] for call in plugin.calls("Allocate")] == [["dev-0"]]
        assert not plugin.calls("PreStartContainer")


async def test_a_second_sync_asks_for_nothing_again(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(3))
        await node.register(plugin)
        for _ in range(3):
            await node.manager.prepare(POD, ())
        assert len(plugin.calls("Allocate")) == 1


async def test_admission_counts_what_others_have_and_were_promised(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        await node.manager.prepare(POD, ())
        third = device_pod("u3")
        assert node.manager.refusal(third, [POD]) == ""
        assert node.manager.refusal(third, [POD, OTHER]) == (
            f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
            "Requested: 1, Available: 0, which is unexpected"
        )
        # One that is ending is not among the others, and holds its device until it is released.
        assert node.manager.refusal(third, [OTHER]) == ""


async def test_devices_are_given_back_with_the_pod_and_wake_who_waits(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin("dev-0"))
        await node.manager.prepare(POD, ())
        with pytest.raises(DevicesAwaitedError, match="other pods that are ending have devices"):
            await node.manager.prepare(OTHER, ())
        await node.manager.release("u1")
        assert node.told == ["u2"]
        await node.manager.prepare(OTHER, ())
        assert node.has(OTHER) == {"dev-0"}


async def test_a_pod_waits_for_a_plugin_that_served_before_the_restart_and_then_gets_devices(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        await node.manager.prepare(POD, ())
    async with device_node(folder, monkeypatch) as node:
        assert node.manager.refusal(OTHER, [POD]) == ""
        for pod in (POD, OTHER):
            with pytest.raises(DevicesAwaitedError, match="has not registered") as awaited:
                await node.manager.prepare(pod, ())
            assert awaited.value.containers == ("main",)
            assert awaited.value.seconds == pytest.approx(300)
            assert node.manager.is_new_wait(pod.metadata.uid)
            assert not node.manager.is_new_wait(pod.metadata.uid)
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        assert set(node.told) == {"u1", "u2"}
        await node.manager.prepare(POD, ())
        await node.manager.prepare(OTHER, ())
        assert node.has(POD) | node.has(OTHER) == {"dev-0", "dev-1"}
        # What has devices is not asked for again.
        assert len(plugin.calls("Allocate")) == 2


async def test_a_pod_that_waited_long_enough_is_rejected_in_the_words_of_the_go_kubelet(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin("dev-0"))
    async with device_node(folder, monkeypatch, wait_seconds=60) as node:
        with pytest.raises(DevicesAwaitedError):
            await node.manager.prepare(POD, ())
        await trio.sleep(60)
        with pytest.raises(AllocationError) as rejected:
            await node.manager.prepare(POD, ())
        assert rejected.value.message == f"Allocate failed due to {NO_HEALTHY}, which is unexpected"


async def test_a_pod_never_starts_without_its_devices_when_their_plugin_does_not_come_back(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, slow = OTHER, device_pod("u3")
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(4)))
        await node.manager.prepare(POD, ())
    async with device_node(folder, monkeypatch) as node:
        await trio.sleep(100)
        node.manager.remember(slow)  # its task begins when the plugin is not expected any longer
        for pod in (POD, waiting):
            with pytest.raises(DevicesAwaitedError, match="has not registered"):
                await node.manager.prepare(pod, ())
        await trio.sleep(201)
        assert set(node.told) == {"u1", "u2"}
        for pod in (POD, waiting, slow):
            with pytest.raises(DevicesAwaitedError, match="no plugin offers"):
                await node.manager.prepare(pod, ())
            with pytest.raises(ConfigError, match="no plugin offers"):
                await node.manager.allocation(pod, pod.spec.containers[0])
        await trio.sleep(100)
        for pod in (POD, waiting):
            with pytest.raises(AllocationError, match="cannot allocate unregistered device"):
                await node.manager.prepare(pod, ())
            await node.manager.release(pod.metadata.uid)
    # The next agent knows that it is a device, for the sake of the pod that waits still.
    async with device_node(folder, monkeypatch) as node:
        with pytest.raises(DevicesAwaitedError, match="has not registered"):
            await node.manager.prepare(slow, ())
        await node.manager.release("u3")
        await trio.sleep(301)
        assert not node.manager.records.resources


async def test_a_resource_that_a_pod_has_by_a_claim_is_none_of_a_device_plugin(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_claim, container = with_claim(OTHER), OTHER.spec.containers[0]
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin("dev-0"))
        await node.manager.prepare(POD, ())
        assert node.manager.refusal(by_claim, [POD]) == "", "all devices are given away"
        await node.manager.prepare(by_claim, ())
        assert await node.manager.allocation(by_claim, container) == NOTHING_ALLOCATED
        await node.manager.release("u1")
        assert node.manager.refusal(device_pod("u3"), [by_claim]) == ""
    async with device_node(folder, monkeypatch, wait_seconds=0.0) as node:
        assert node.manager.is_device(RESOURCE), "its plugin was there before the restart"
        assert node.manager.refusal(by_claim, []) == ""
        await node.manager.prepare(by_claim, ())
        assert await node.manager.allocation(by_claim, container) == NOTHING_ALLOCATED
        with pytest.raises(AllocationError):
            await node.manager.prepare(POD, ())


async def test_a_plugin_that_comes_late_serves_the_pods_that_wait_still(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        await node.kill(plugin)
        await trio.sleep(200)
        with pytest.raises(DevicesAwaitedError):
            await node.manager.prepare(POD, ())
        await trio.sleep(200)
        with pytest.raises(DevicesAwaitedError, match="no plugin offers"):
            await node.manager.prepare(POD, ())
        node.told.clear()
        await node.register(node.plugin("dev-0"))
        assert set(node.told) == {"u1"}
        await node.manager.prepare(POD, ())
        assert node.has(POD) == {"dev-0"}


async def test_a_plugin_whose_first_list_fails_serves_when_it_lists_its_devices(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        plugin.set_faults(ListAndWatch={"fail": "no devices yet"})
        await node.register(plugin)
        plugin.set_faults()
        assert await node.comes_to_have(1)


async def test_a_plugin_that_was_given_up_and_lists_again_is_expected_after_a_restart(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        plugin.set_faults(ListAndWatch={"fail": "reset"})
        await trio.sleep(GRACE_SECONDS + 1)
        assert not node.manager.is_device(RESOURCE)
        plugin.set_faults()
        assert await node.comes_to_have(1)
    async with device_node(folder, monkeypatch) as node:
        with pytest.raises(DevicesAwaitedError, match="has not registered"):
            await node.manager.prepare(POD, ())


async def test_without_a_wait_a_pod_is_rejected_at_once(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin("dev-0"))
    async with device_node(folder, monkeypatch, wait_seconds=0) as node:
        expected = f"Allocate failed due to {NO_HEALTHY}, which is unexpected"
        assert node.manager.refusal(POD, []) == expected


async def test_what_runs_after_a_restart_is_let_run(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        await node.manager.prepare(POD, ())
    async with device_node(folder, monkeypatch) as node:
        await node.manager.prepare(POD, {"main"})
        assert node.has(POD) == {"dev-0"}


async def test_a_plugin_that_goes_takes_its_devices_with_it_after_a_while(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        await node.manager.prepare(POD, ())
        await node.kill(plugin)
        assert node.manager.plugins.amounts() == {RESOURCE: (2, 0)}
        (status,) = node.manager.resource_statuses("u1")["main"]
        assert [each.health for each in status.resources] == ["Unhealthy"]
        await trio.sleep(301)
        assert node.manager.plugins.amounts() == {RESOURCE: (0, 0)}
        # The container of a pod that has its devices may start again all the same.
        assert (await node.manager.allocation(POD, POD.spec.containers[0])).variables


async def test_nobody_knows_how_devices_are_whose_plugin_did_not_come_back(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def health() -> list[str]:
        (status,) = node.manager.resource_statuses("u1")["main"]
        return [each.health for each in status.resources]

    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        await node.manager.prepare(POD, ())
        await node.kill(plugin)
        assert (node.told, health()) == (["u1"], ["Unhealthy"])
        await trio.sleep(301)
        assert (node.told, health()) == (["u1", "u1"], ["Unknown"])


async def test_a_plugin_that_comes_back_in_time_has_its_devices_again(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        await node.kill(plugin)
        await trio.sleep(200)
        await node.register(node.plugin("dev-0"))
        await trio.sleep(200)
        assert node.manager.plugins.amounts() == {RESOURCE: (1, 1)}


async def test_an_app_container_uses_the_devices_of_init_containers_again_and_not_of_sidecars(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = device_pod(
        "u1",
        device_container(count=2),
        init=[device_container("first", 2), device_container("side", 1, sidecar=True)],
    )
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(3)))
        assert node.manager.refusal(pod, []) == ""
        await node.manager.prepare(pod, ())
        assert len(node.has(pod, "first") | node.has(pod, "side") | node.has(pod)) == 3
        assert not node.has(pod, "side") & node.has(pod)
        assert node.has(pod, "side") < node.has(pod, "first")


async def test_the_plugin_is_asked_which_devices_it_prefers(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(5), preferred=("dev-3", "dev-4", "not-there"))
        await node.register(plugin)
        pod = device_pod("u1", device_container(count=2))
        await node.manager.prepare(pod, ())
        assert node.has(pod) == {"dev-3", "dev-4"}
        (call,) = plugin.calls("GetPreferredAllocation")
        assert (call["available"], call["must"], call["size"]) == ([*devices(5)], [], 2)


async def test_devices_are_got_ready_before_each_start_where_the_plugin_wants_that(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0", pre_start=True)
        await node.register(plugin)
        await node.manager.prepare(POD, ())
        await node.manager.allocation(POD, POD.spec.containers[0])
        assert [call["ids"] for call in plugin.calls("PreStartContainer")] == [["dev-0"]]
        plugin.set_faults(PreStartContainer={"fail": "no power"})
        with pytest.raises(ConfigError) as error:
            await node.manager.allocation(POD, POD.spec.containers[0])
        assert error.value.message == (
            "device plugin PreStartContainer rpc failed with err: "
            "rpc error: code = Unknown desc = no power"
        )


async def test_a_container_waits_for_a_plugin_that_has_gone_and_is_to_get_its_devices_ready(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0", pre_start=True)
        await node.register(plugin)
        await node.manager.prepare(POD, ())
        await node.kill(plugin)
        for seconds in (1, GRACE_SECONDS):
            await trio.sleep(seconds)
            with pytest.raises(ConfigError, match="is to get the devices ready") as error:
                await node.manager.allocation(POD, POD.spec.containers[0])
            assert error.value.reason == WAITING
        plugin = node.plugin("dev-0", pre_start=True)
        await node.register(plugin)
        assert (await node.manager.allocation(POD, POD.spec.containers[0])).variables
        assert [call["ids"] for call in plugin.calls("PreStartContainer")] == [["dev-0"]]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"fail": "no"}, "Allocate failed due to rpc error: code = Unknown desc = no, which"),
        ({"empty": True}, "Allocate failed due to no containers return in allocation response"),
        ({"mount": "../etc"}, "which is no absolute path"),
        ({"hang": True}, "took longer than 120 s"),
    ],
)
async def test_a_plugin_that_fails_costs_its_pod_and_no_device(
    folder: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, object],
    message: str,
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        plugin.set_faults(Allocate=fault)
        with pytest.raises(AllocationError) as error:
            await node.manager.prepare(POD, ())
        assert message in error.value.message
        assert not node.has(POD)
        plugin.set_faults()
        await node.manager.prepare(OTHER, ())
        assert node.has(OTHER) == {"dev-0"}


async def test_a_plugin_that_hangs_delays_no_other_resource(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "other.example.com/device"
    other = device_pod("u2", device_container(resource=name))
    async with device_node(folder, monkeypatch) as node:
        hanging = node.plugin("dev-0")
        await node.register(hanging)
        await node.register(node.plugin("x-0", resource=name))
        hanging.set_faults(Allocate={"hang": True})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.manager.prepare, POD, ())
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(1):
                await node.manager.prepare(other, ())
            nursery.cancel_scope.cancel()
        assert node.has(other, resource=name) == {"x-0"}
        assert not node.has(POD)


async def test_a_call_that_was_cut_off_leaves_no_record_for_the_next_agent(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        plugin.set_faults(Allocate={"hang": True})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.manager.prepare, POD, ())
            await trio.testing.wait_all_tasks_blocked()
            plugin.set_faults()
            await node.manager.prepare(OTHER, ())  # writes the file while the other call hangs
            nursery.cancel_scope.cancel()
    async with device_node(folder, monkeypatch) as node:
        assert node.manager.records.uids() == {"u2"}


async def test_a_checkpoint_that_is_none_is_set_aside(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kubelet_internal_checkpoint").write_bytes(b"\xff{half")
    async with device_node(folder, monkeypatch) as node:
        assert not node.manager.records.uids()
        await node.register(node.plugin("dev-0"))
        await node.manager.prepare(POD, ())
    assert (folder / "kubelet_internal_checkpoint.damaged").exists()
    async with device_node(folder, monkeypatch) as node:
        assert node.has(POD) == {"dev-0"}


async def test_a_pod_with_more_devices_than_there_are_is_rejected(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod: Pod = device_pod("u1", device_container(count=3))
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        with pytest.raises(AllocationError, match="Requested: 3, Available: 2"):
            await node.manager.prepare(pod, ())


async def test_a_list_of_too_many_devices_is_refused_and_the_resource_lost(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_DEVICES", 2)
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        plugin.set_devices(dict.fromkeys(devices(3), "Healthy"))
        await trio.sleep(2)
        assert node.manager.plugins.amounts() == {RESOURCE: (1, 0)}


async def test_an_agent_that_ends_while_a_plugin_registers_does_not_follow_it(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as agent, device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")

        async def end_agent_meanwhile(*_: object) -> None:
            agent.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()

        monkeypatch.setattr(plugins_module, "run_in_thread", end_agent_meanwhile)
        await node.register(plugin)
    assert node.manager.plugins.get(RESOURCE) is None
