"""Who gets the next slot."""

import trio
import trio.testing

from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec
from trio_kubelet.pod_source import CONFIG_SOURCE
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.start_limiter import HELD_SECONDS, StartLimiter, StartStage

SANDBOX = StartStage.SANDBOX
CRITICAL = 2_000_000_000
"""The priority of system-cluster-critical."""


def a_pod(
    namespace: str = "ns",
    *,
    priority: int | None = None,
    class_name: str = "",
    static: bool = False,
) -> Pod:
    annotations = {CONFIG_SOURCE: "file"} if static else {}
    metadata = ObjectMeta(name="p", namespace=namespace, annotations=annotations)
    return Pod(metadata=metadata, spec=PodSpec(priority=priority, priority_class_name=class_name))


POD = a_pod()


async def test_no_more_than_the_slots_are_held_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, held, most = StartLimiter(3), 0, 0

    async def work() -> None:
        nonlocal held, most
        async with slots.slot(SANDBOX, POD):
            held += 1
            most = max(most, held)
            await trio.sleep(1)
            held -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(work)
    assert most == 3


async def test_the_more_important_go_first_then_the_nearly_done_then_those_that_waited_longest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, order = StartLimiter(1), []
    static, node = a_pod(static=True), a_pod(class_name="system-node-critical")
    cluster, other_static = a_pod(priority=CRITICAL), a_pod(priority=CRITICAL, static=True)

    async def work(name: str, stage: StartStage, pod: Pod) -> None:
        async with slots.slot(stage, pod):
            order.append(name)

    async with trio.open_nursery() as nursery, slots.slot(SANDBOX, POD):
        for name, stage, pod in (
            ("sandbox 1", SANDBOX, POD),
            ("sandbox 2", SANDBOX, POD),
            ("humble sandbox", SANDBOX, a_pod(priority=-1)),
            ("container", StartStage.CONTAINER, POD),
            ("static sandbox", SANDBOX, static),
            ("static container", StartStage.CONTAINER, static),
            ("cluster-critical", SANDBOX, cluster),
            ("static cluster-critical", SANDBOX, other_static),
            ("node-critical", SANDBOX, node),
        ):
            nursery.start_soon(work, name, stage, pod)
            await trio.testing.wait_all_tasks_blocked()
    assert order == [
        "node-critical",
        "static cluster-critical",
        "cluster-critical",
        "static container",
        "static sandbox",
        "container",
        "sandbox 1",
        "sandbox 2",
        "humble sandbox",
    ]


async def test_who_gives_up_waiting_holds_nothing(autojump_clock: trio.testing.MockClock) -> None:
    slots = StartLimiter(1)
    async with slots.slot(SANDBOX, POD):
        with trio.move_on_after(1):
            async with slots.slot(SANDBOX, POD):
                raise AssertionError("there was no slot")
    with trio.fail_after(1):
        async with slots.slot(SANDBOX, POD):
            pass


async def test_a_slot_given_to_someone_who_is_cancelled_goes_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots = StartLimiter(1)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            async with slots.slot(SANDBOX, POD):
                raise AssertionError("cancelled before it ran")

    async with trio.open_nursery() as nursery:
        async with slots.slot(SANDBOX, POD):
            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        with trio.fail_after(1):
            async with slots.slot(SANDBOX, POD):
                pass


async def test_who_holds_a_slot_starts_something(autojump_clock: trio.testing.MockClock) -> None:
    activity = Activity()
    slots, began = StartLimiter(1, activity), trio.current_time()

    async def start() -> None:
        async with slots.slot(SANDBOX, POD):
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked()
        await activity.wait_idle(1)
    assert trio.current_time() - began == 11


async def test_namespaces_take_turns_however_many_one_of_them_starts() -> None:
    slots, order = StartLimiter(1), []

    async def work(namespace: str) -> None:
        async with slots.slot(SANDBOX, a_pod(namespace)):
            order.append(namespace)

    async with trio.open_nursery() as nursery, slots.slot(SANDBOX, a_pod("many")):
        for namespace in (*["many"] * 20, "one", "other"):
            nursery.start_soon(work, namespace)
            await trio.testing.wait_all_tasks_blocked()
    assert order[:4] == ["many", "one", "other", "many"]


async def test_containers_of_one_namespace_stand_before_no_sandbox_of_another() -> None:
    slots, order = StartLimiter(1), []

    async def work(stage: StartStage, namespace: str) -> None:
        async with slots.slot(stage, a_pod(namespace)):
            order.append((stage.name, namespace))

    async with trio.open_nursery() as nursery, slots.slot(SANDBOX, a_pod("many")):
        nursery.start_soon(work, SANDBOX, "many")
        for _ in range(20):
            nursery.start_soon(work, StartStage.CONTAINER, "many")
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(work, SANDBOX, "one")
        await trio.testing.wait_all_tasks_blocked()
    assert order[:3] == [("CONTAINER", "many"), ("SANDBOX", "one"), ("CONTAINER", "many")]
    assert order[-1] == ("SANDBOX", "many")


async def test_what_hangs_keeps_its_slot_for_a_while_and_goes_on_without(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, began, ended = StartLimiter(2), trio.current_time(), list[float]()

    async def hang(seconds: float) -> None:
        async with slots.slot(SANDBOX, a_pod("hangs")):
            await trio.sleep(seconds)
        ended.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hang, 60)
        await trio.testing.wait_all_tasks_blocked()
        held = list[float]()
        for _ in range(3):
            async with slots.slot(SANDBOX, a_pod("good")):
                held.append(trio.current_time() - began)
        nursery.start_soon(hang, 1)
        await trio.testing.wait_all_tasks_blocked()
    assert held == [HELD_SECONDS] * 3
    assert ended == [HELD_SECONDS + 1, 60, 60]
    async with trio.open_nursery() as nursery:  # There are as many as before.
        for _ in range(3):
            nursery.start_soon(hang, 1)
    assert ended[3:] == [61, 61, 62]
