"""The owner of the newest statuses: what it goes on from, and whom it tells."""

from pathlib import Path
from typing import Any

import trio
from attrs import evolve

from state_machines.probe import ProbeVerdict
from tests.unit.status.pods import EXITED, NOW, RUNNING, SECOND, a_pod, instance, seen
from trio_kubelet.k8s import (
    Container,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    Pod,
    PodStatus,
    Quantity,
    ResourceRequirements,
    VolumeMount,
)
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.runtime.observed import ObservedPod, ObservedResources
from trio_kubelet.status import NodeIdentity, Statuses, StatusReporter
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.telemetry import Journal


class SetClock:
    def __init__(self) -> None:
        self.ns = NOW

    def now_ns(self) -> int:
        return self.ns


def allocations() -> Allocations:
    return Allocations(Path("/nowhere"), trio.CapacityLimiter(1))


def a_reporter(clock: Clock | None = None, **parts: Any) -> StatusReporter:
    store = parts.get("allocations") or allocations()
    return StatusReporter(
        **{
            "statuses": Statuses(),
            "clock": clock or SetClock(),
            "node": NodeIdentity(host_ips=("10.0.0.1",)),
            "allocations": store,
            "resizes": ResizeProgress(store, Journal(clock or SetClock())),
            **parts,
        }
    )


def report(reporter: StatusReporter, pod: Pod, observed: ObservedPod) -> PodStatus:
    status = reporter.make(pod, observed, {}, None, restarting=frozenset(), stopped=False)
    reporter.put(pod, status)
    return status


def test_the_newest_status_is_kept() -> None:
    reporter, pod = a_reporter(), a_pod()
    status = report(reporter, pod, seen(instance("c", RUNNING)))
    assert reporter.statuses.get("u") == status
    assert reporter.statuses.with_status(pod) == evolve(pod, status=status)


def test_a_pod_without_a_report_has_no_status_of_ours() -> None:
    reporter, pod = a_reporter(), a_pod()
    assert reporter.statuses.get("u") is None
    assert reporter.statuses.with_status(pod) is pod


def test_a_forgotten_pod_starts_afresh() -> None:
    clock = SetClock()
    reporter, pod = a_reporter(clock), a_pod(restart_policy="Never")
    report(reporter, pod, seen(instance("c", EXITED)))
    reporter.forget("u")
    assert reporter.statuses.get("u") is None
    clock.ns += 60 * SECOND
    status = report(reporter, pod, seen(sandboxes=()))
    assert status.phase == "Pending"
    assert status.start_time is not None
    assert status.start_time.ns == clock.ns


def test_listeners_hear_of_changes_only() -> None:
    clock = SetClock()
    reporter, pod, heard = a_reporter(clock), a_pod(), list[str]()
    changed = reporter.statuses.on_change
    changed.add(lambda pod, status: heard.append(f"{pod.metadata.name} {status.phase}"))
    report(reporter, pod, seen())
    clock.ns += SECOND
    report(reporter, pod, seen())
    report(reporter, pod, seen(instance("c", RUNNING)))
    clock.ns += SECOND
    report(reporter, pod, seen(instance("c", RUNNING)))
    assert heard == ["p Pending", "p Running"]


def test_after_a_restart_of_the_agent_the_status_in_the_api_is_gone_on_from() -> None:
    clock = SetClock()
    pod = a_pod()
    before = report(a_reporter(clock), pod, seen(instance("c", RUNNING, 2)))
    clock.ns += 3600 * SECOND
    restarted, heard = a_reporter(clock), list[PodStatus]()
    restarted.statuses.on_change.add(lambda _, status: heard.append(status))
    after = report(restarted, evolve(pod, status=before), seen(instance("c", RUNNING, 2)))
    assert after == before
    assert heard == []


def test_resources_are_those_that_were_allocated_and_made_whatever_the_spec_says_since() -> None:
    def asking(cpu: str, generation: int) -> Pod:
        given = ResourceRequirements(requests={"cpu": Quantity(cpu)}, limits={"cpu": Quantity(cpu)})
        container = Container(name="c", resources=given)
        return a_pod(containers=(container,), generation=generation)

    store = allocations()
    reporter = a_reporter(allocations=store)
    store.allocate(asking("1", 1))
    made = ObservedResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)
    status = report(reporter, asking("2", 2), seen(instance("c", RUNNING, resources=made)))
    (shown,) = status.container_statuses
    assert shown.allocated_resources == {"cpu": Quantity("1")}
    assert shown.resources is not None
    assert shown.resources.limits == shown.resources.requests == {"cpu": Quantity("500m")}
    assert status.allocated_resources == {"cpu": Quantity("1")}
    assert status.resources is not None
    assert status.resources.limits == {"cpu": Quantity("1")}
    assert status.observed_generation == 2
    waiting = report(reporter, asking("2", 2), seen()).container_statuses[0]
    assert waiting.resources is None


def test_what_the_runtime_offers_shows_in_the_next_report() -> None:
    runtime_features = RuntimeFeatures()
    reporter = a_reporter(runtime_features=lambda: runtime_features)
    mount = VolumeMount(name="v", mount_path="/v", read_only=True, recursive_read_only="Enabled")
    pod = a_pod(containers=(Container(name="c", volume_mounts=(mount,)),))

    def shown() -> str:
        (mounted,) = report(reporter, pod, seen()).container_statuses[0].volume_mounts
        return mounted.recursive_read_only

    assert shown() == "Disabled"
    able = NodeRuntimeHandlerFeatures(recursive_read_only_mounts=True)
    runtime_features = RuntimeFeatures(handlers=(NodeRuntimeHandler(name="", features=able),))
    assert shown() == "Enabled"


def test_what_probes_say_shows_in_the_next_report() -> None:
    probed = {"c-0": ProbeVerdict(ready=False)}
    reporter = a_reporter(probed=probed)
    status = report(reporter, a_pod(), seen(instance("c", RUNNING)))
    assert not status.container_statuses[0].ready
    probed["c-0"] = ProbeVerdict(ready=True)
    status = report(reporter, a_pod(), seen(instance("c", RUNNING)))
    assert status.container_statuses[0].ready
