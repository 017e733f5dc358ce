"""What is read out of the runtime's description of a container, and who is looked at when."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import HollowOptions, Latencies, open_hollow_runtime
from trio_kubelet.rpc import InProcess
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.inspection import LOOKS_OF_NAMESPACE, PodInspector, observed_container
from trio_kubelet.runtime.observed import ObservedPod


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (cri.Signal.RUNTIME_DEFAULT, ""),
        (cri.Signal.SIGTERM, "SIGTERM"),
        (cri.Signal.SIGRTMINPLUS1, "SIGRTMIN+1"),
        (cri.Signal.SIGRTMAXMINUS2, "SIGRTMAX-2"),
        (9999, ""),
    ],
)
def test_the_stop_signal_has_the_name_that_the_api_gives_it(number: int, name: str) -> None:
    sent = cri.ContainerStatus(stop_signal=number)  # type: ignore[arg-type]
    told = cri.ContainerStatus().parse(bytes(sent))
    assert observed_container(told, "sandbox").stop_signal == name


async def test_pods_of_a_namespace_are_looked_at_in_turns_and_hold_up_no_other(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[float, str]] = []

    async def look(uid: str, namespace: str) -> None:
        await inspector.inspect(
            ObservedPod(uid=uid, name=uid, namespace=namespace, observed_at=0.0)
        )
        seen.append((trio.current_time(), namespace))

    options = HollowOptions(latencies=Latencies(list=1.0))
    async with open_hollow_runtime(TrioClock(), options) as runtime:
        inspector = PodInspector(client=RuntimeClient(InProcess(runtime)))
        async with trio.open_nursery() as nursery:
            for number in range(2 * LOOKS_OF_NAMESPACE):
                nursery.start_soon(look, f"u{number}", "many")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(look, "u", "good")
    assert sorted(seen) == [
        (1, "good"),
        *[(1, "many")] * LOOKS_OF_NAMESPACE,
        *[(2, "many")] * LOOKS_OF_NAMESPACE,
    ]
