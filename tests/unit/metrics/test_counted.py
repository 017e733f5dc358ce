"""What is counted when something is told."""

from collections.abc import AsyncGenerator, Callable

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.pod import PodState
from state_machines.probe import ProbeKind
from tests.unit.metrics.counting import NOW, POD, SECOND, counter, value
from trio_kubelet.agent.monitoring import safe
from trio_kubelet.csi import DriverCall
from trio_kubelet.k8s import (
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Time,
)
from trio_kubelet.metrics.counted import operation_name
from trio_kubelet.metrics.counted_volumes import VolumeCounter
from trio_kubelet.metrics.http_requests import counted, path_label
from trio_kubelet.probes import ProbeOutcome, ProbeRun
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.rpc.watched import RpcCall
from trio_kubelet.runtime.config.security import IdMapping, namespace_options
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.server import Request, Response
from trio_kubelet.volumes import VolumeOperation

FAILED = RpcError(Code.UNKNOWN, "no")


def create(name: str, *, fails: bool = False) -> RpcCall:
    labels = {"io.kubernetes.pod.uid": "uid", "io.kubernetes.container.name": name}
    return RpcCall(
        method="create_container",
        request=cri.CreateContainerRequest(config=cri.ContainerConfig(labels=labels)),
        seconds=0.1,
        response=None if fails else cri.CreateContainerResponse(container_id=f"id-{name}"),
        error=FAILED if fails else None,
    )


def start(name: str, *, fails: bool = False) -> RpcCall:
    request = cri.StartContainerRequest(container_id=f"id-{name}")
    return RpcCall(
        method="start_container", request=request, seconds=0.1, error=FAILED if fails else None
    )


@pytest.mark.parametrize(
    ("method", "operation"),
    [
        ("run_pod_sandbox", "run_podsandbox"),
        ("list_pod_sandbox", "list_podsandbox"),
        ("pod_sandbox_status", "podsandbox_status"),
        ("list_containers", "list_containers"),
        ("stream_pod_sandboxes", "list_podsandbox"),
    ],
)
def test_operations_have_the_go_kubelets_names(method: str, operation: str) -> None:
    assert operation_name(method) == operation


def test_calls_to_the_runtime() -> None:
    count = counter()
    request = cri.RunPodSandboxRequest(runtime_handler="kata")
    count.runtime_called(RpcCall(method="run_pod_sandbox", request=request, seconds=2))
    count.runtime_called(
        RpcCall(method="run_pod_sandbox", request=request, seconds=1, error=FAILED)
    )
    of_operation = {"operation_type": "run_podsandbox"}
    assert value(count, "kubelet_runtime_operations_total", **of_operation) == 2
    assert value(count, "kubelet_runtime_operations_errors_total", **of_operation) == 1
    assert value(count, "kubelet_runtime_operations_duration_seconds_sum", **of_operation) == 3
    assert value(count, "kubelet_started_pods_total") == 2
    assert value(count, "kubelet_started_pods_errors_total") == 1
    assert value(count, "kubelet_run_podsandbox_errors_total", runtime_handler="kata") == 1


@pytest.mark.parametrize(
    ("spec", "started", "failed"),
    [(PodSpec(), 0, 0), (PodSpec(host_users=True), 0, 0), (PodSpec(host_users=False), 2, 1)],
)
def test_pods_with_a_user_namespace_are_counted_once_more(
    spec: PodSpec, started: int, failed: int
) -> None:
    mapping = IdMapping(host_id=65536, length=65536) if spec.host_users is False else None
    options = namespace_options(Pod(spec=spec), mapping)
    context = cri.LinuxSandboxSecurityContext(namespace_options=options)
    linux = cri.LinuxPodSandboxConfig(security_context=context)
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(linux=linux))
    count = counter()
    for error in (None, FAILED):
        count.runtime_called(
            RpcCall(method="run_pod_sandbox", request=request, seconds=1, error=error)
        )
    assert value(count, "kubelet_started_pods_total") == 2
    assert value(count, "kubelet_started_user_namespaced_pods_total") == started
    assert value(count, "kubelet_started_user_namespaced_pods_errors_total") == failed


def test_containers_are_counted_by_their_kind() -> None:
    count = counter()
    for call in (create("c"), start("c"), create("i"), start("i", fails=True)):
        count.runtime_called(call)
    count.runtime_called(create("c", fails=True))
    started = "kubelet_started_containers_total"
    assert value(count, started, container_type="container") == 2
    assert value(count, started, container_type="init_container") == 1
    failed = "kubelet_started_containers_errors_total"
    assert value(count, failed, container_type="init_container", code="RunContainerError") == 1
    assert value(count, failed, container_type="container", code="CreateContainerError") == 1


def test_an_end_is_counted_once() -> None:
    count = counter()
    running = ObservedContainer(id="1", name="c", sandbox_id="s", state=ObservedState.RUNNING)
    ended = evolve(running, state=ObservedState.EXITED, exit_code=3, reason="Error")
    before = ObservedPod(
        uid="uid", name="web", namespace="default", observed_at=0, containers=(running,)
    )
    after = evolve(before, containers=(ended,))
    count.observed(before, after)
    count.observed(after, after)
    labels = {"container_type": "container", "exit_code": "3", "reason": "Error"}
    assert value(count, "kubelet_terminated_containers_total", **labels) == 1


def running(started_at_ns: int = NOW) -> PodStatus:
    state = ContainerState(running=ContainerStateRunning(started_at=Time(started_at_ns)))
    return PodStatus(phase="Running", container_statuses=(ContainerStatus(name="c", state=state),))


def test_the_start_of_a_pod_is_timed_with_and_without_its_pulls() -> None:
    count = counter(seen_ago=10)
    count.status_changed(POD, PodStatus(phase="Pending"))
    count.image_pulled("uid", 5)
    count.status_changed(POD, running())
    count.status_changed(POD, running())
    count.worked(POD, PodState.SYNC_POD, seconds=1)
    assert value(count, "kubelet_pod_start_duration_seconds_sum") == 10
    assert value(count, "kubelet_pod_start_duration_seconds_count") == 1
    assert value(count, "kubelet_pod_start_total_duration_seconds_sum") == 20
    assert value(count, "kubelet_pod_start_sli_duration_seconds_sum") == 15
    assert value(count, "kubelet_first_network_pod_start_sli_duration_seconds") == 15
    assert value(count, "kubelet_pod_worker_start_duration_seconds_sum") == 9


def test_a_pod_that_ran_before_the_agent_did_not_start_now() -> None:
    count = counter()
    count.worked(POD, PodState.SYNC_POD, seconds=1)
    count.status_changed(POD, running(NOW - 3600 * SECOND))
    assert value(count, "kubelet_pod_start_duration_seconds_count") == 0


def test_work_is_timed_by_its_kind() -> None:
    count = counter()
    for state in (PodState.SYNC_POD, PodState.SYNC_POD, PodState.TERMINATING):
        count.worked(POD, state, seconds=1)
    name = "kubelet_pod_worker_duration_seconds_count"
    kinds = [value(count, name, operation_type=kind) for kind in ("create", "sync", "kill")]
    assert kinds == [1, 1, 1]


def test_a_rejection_is_counted_once_with_its_reason() -> None:
    count = counter()
    rejected = PodStatus(phase="Failed", reason="OutOfcpu", message="Pod was rejected: no room")
    count.status_changed(POD, rejected)
    count.status_changed(POD, evolve(rejected, start_time=Time(NOW)))
    assert value(count, "kubelet_admission_rejections_total", reason="OutOfcpu") == 1


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfephemeral-storage", "OutOfephemeral-storage"),
        ("OutOfa.b/device", "OutOfa.b/device"),
        ("OutOfhugepages-2Mi", "OutOfhugepages-2Mi"),
        ("OutOfhugepages-3Mi", "OutOfhugepages"),
        ("OutOfhugepages-x", "OutOfhugepages"),
        ("NodeAffinity", "NodeAffinity"),
    ],
)
def test_sizes_of_pages_that_the_node_does_not_have_share_a_label(reason: str, label: str) -> None:
    count = counter()
    message = "Pod was rejected: no room"
    count.status_changed(POD, PodStatus(phase="Failed", reason=reason, message=message))
    assert value(count, "kubelet_admission_rejections_total", reason=label) == 1


def test_an_event_of_a_runtime_whose_clock_is_ahead_took_no_time() -> None:
    count = counter()
    for seconds in (-3.0, 0.2):
        count.runtime_event(seconds)
    name = "kubelet_evented_pleg_connection_latency_seconds"
    assert (value(count, f"{name}_count"), value(count, f"{name}_sum")) == (2, 0.2)


def test_relists_and_requests() -> None:
    count = counter()
    count.relisted(0.5, float("inf"))
    count.relisted(0.5, 300)
    assert value(count, "kubelet_pleg_relist_duration_seconds_count") == 2
    assert value(count, "kubelet_pleg_relist_interval_seconds_sum") == 300
    count.api_answered("api:6443", "PATCH", 409, 0.2)
    count.api_answered("api:6443", "PATCH", None, 1)
    labels = {"host": "api:6443", "method": "PATCH"}
    assert value(count, "rest_client_requests_total", code="409", **labels) == 1
    assert value(count, "rest_client_requests_total", code="<error>", **labels) == 1


def test_what_is_known_of_a_pod_goes_with_it() -> None:
    count = counter()
    count.worked(POD, PodState.SYNC_POD, seconds=1)
    run = ProbeRun(
        pod=POD,
        container="c",
        kind=ProbeKind.READINESS,
        outcome=ProbeOutcome.WARNING,
        duration_seconds=0.5,
    )
    count.probe_run(run)
    labels = {
        "probe_type": "Readiness",
        "container": "c",
        "pod": "web",
        "namespace": "default",
        "result": "successful",
        "pod_uid": "uid",
    }
    registry = count.probe_counts.registry
    assert registry.get_sample_value("prober_probe_total", labels) == 1
    count.finished("uid")
    assert [s for family in registry.collect() for s in family.samples] == []
    count.worked(POD, PodState.SYNC_POD, seconds=1)
    assert value(count, "kubelet_pod_worker_duration_seconds_count", operation_type="create") == 2


@pytest.mark.parametrize(
    ("outcome", "results", "durations"),
    [
        (ProbeOutcome.SUCCESS, {"successful": 1}, 1),
        (ProbeOutcome.WARNING, {"successful": 1}, 1),
        (ProbeOutcome.FAILURE, {"failed": 1}, 0),
        (ProbeOutcome.UNKNOWN, {}, 0),
    ],
)
def test_a_probe_is_counted_by_its_result(
    outcome: ProbeOutcome, results: dict[str, float], durations: int
) -> None:
    count = counter()
    count.probe_run(
        ProbeRun(
            pod=POD, container="c", kind=ProbeKind.LIVENESS, outcome=outcome, duration_seconds=1
        )
    )
    samples = [s for family in count.probe_counts.registry.collect() for s in family.samples]
    counted = {s.labels["result"]: s.value for s in samples if s.name == "prober_probe_total"}
    assert counted == results
    assert sum(s.name == "prober_probe_duration_seconds_count" for s in samples) == durations


LABELS = frozenset({"metrics", "metrics/cadvisor", "containerLogs", "pods", "exec"})


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/metrics/cadvisor", "metrics/cadvisor"),
        ("/metrics", "metrics"),
        ("/metrics/none", "metrics"),
        ("/containerLogs/a/b/c", "containerLogs"),
        ("/wp-admin/x.php", "other"),
        ("/", "other"),
    ],
)
def test_the_labels_of_paths_are_bounded(path: str, label: str) -> None:
    assert path_label(path, LABELS) == label


async def test_requests_are_counted_while_they_go_on_and_when_they_end(
    autojump_clock: MockClock,
) -> None:
    count = counter()
    labels = {"long_running": "true", "method": "POST", "path": "exec", "server_type": "readwrite"}
    inflight: list[float | None] = []

    async def answer(_request: Request) -> Response:
        inflight.append(value(count, "kubelet_http_inflight_requests", **labels))
        await trio.sleep(3)
        return Response()

    handler = counted(answer, count.counts, "readwrite", LABELS)
    headers = evolve(Request(method="", path="").headers, pairs=(("Upgrade", "websocket"),))
    await handler(Request(method="POST", path="/exec/a/b/c", headers=headers))
    assert inflight == [1]
    assert value(count, "kubelet_http_inflight_requests", **labels) == 0
    assert value(count, "kubelet_http_requests_total", **labels) == 1
    assert value(count, "kubelet_http_requests_duration_seconds_sum", **labels) == 3
    assert value(count, "kubelet_websocket_streaming_requests_total", subresource="exec") == 1


@pytest.mark.parametrize("how", ["to its end", "until its client goes", "for its head"])
async def test_a_response_that_streams_goes_on_to_its_last_piece(
    autojump_clock: MockClock, how: str
) -> None:
    count, closed = counter(), trio.Event()
    labels = {"method": "GET", "path": "containerLogs", "server_type": "readwrite"}

    def told(name: str) -> float | None:
        return value(count, f"kubelet_http_{name}", long_running="false", **labels)

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await trio.sleep(3)
            yield b"b"
        finally:
            closed.set()

    async def answer(_request: Request) -> Response:
        body = pieces()
        assert await anext(body) == b"a"
        return Response(body=body)

    handler = counted(answer, count.counts, "readwrite", LABELS)
    response = await handler(Request(method="GET", path="/containerLogs/a/b/c"))
    assert response is not None
    assert not isinstance(response.body, bytes)
    assert (told("inflight_requests"), told("requests_total")) == (1, 1)
    if how == "to its end":
        assert b"".join([piece async for piece in response.body]) == b"b"
    elif how == "until its client goes":
        with trio.move_on_after(2):
            async for _ in response.body:
                pass
    await response.body.aclose()
    assert closed.is_set()
    seconds = {"to its end": 3, "until its client goes": 2, "for its head": 0}
    assert told("requests_duration_seconds_sum") == seconds[how]
    assert told("inflight_requests") == 0


def test_who_tells_of_something_does_not_suffer_from_a_bug_in_counting() -> None:
    def fail() -> None:
        raise ValueError("a bug")

    call: Callable[[], None] = safe(fail)
    call()


def test_operations_on_volumes_have_the_labels_of_the_go_kubelet() -> None:
    count, plugin = counter(), "kubernetes.io/csi:d.example.com"
    for operation in (
        VolumeOperation(plugin=plugin, name="volume_mount", seconds=0.2, total_seconds=700),
        VolumeOperation(plugin=plugin, name="volume_mount", seconds=0.2, has_failed=True),
        VolumeOperation(plugin=plugin, name="unmount_device", seconds=0.2),
    ):
        VolumeCounter(count.counts).volume_operated(operation)
    name = "storage_operation_duration_seconds"
    labels = {"migrated": "false", "volume_plugin": plugin}
    for told, status in (
        ("volume_mount", "success"),
        ("volume_mount", "fail-unknown"),
        ("unmount_device", "success"),
    ):
        labels |= {"operation_name": told, "status": status}
        assert value(count, f"{name}_bucket", **labels, le="0.25") == 1
        assert value(count, f"{name}_bucket", **labels, le="0.1") == 0
    name = "volume_operation_total_seconds"
    total = {"operation_name": "overall_volume_mount", "plugin_name": plugin}
    assert value(count, f"{name}_bucket", **total, le="600.0") == 0
    assert value(count, f"{name}_count", **total) == 1


def test_calls_to_csi_drivers_are_counted_by_their_codes() -> None:
    count, method = counter(), "/csi.v1.Node/NodePublishVolume"
    labels = {"driver_name": "d", "method_name": method, "migrated": "false"}
    for error, code in (
        (None, "OK"),
        (RpcError(Code.DEADLINE_EXCEEDED, ""), "DeadlineExceeded"),
        (RpcError(Code.CANCELLED, ""), "Canceled"),
    ):
        VolumeCounter(count.counts).csi_called(
            DriverCall(driver="d", method=method, seconds=0.2, error=error)
        )
        found = value(count, "csi_operations_seconds_count", **labels, grpc_status_code=code)
        assert found == 1


def test_volumes_that_were_found_at_the_start_are_counted() -> None:
    count = counter()
    VolumeCounter(count.counts).volumes_found(7, 2)
    assert value(count, "reconstruct_volume_operations_total") == 7
    assert value(count, "reconstruct_volume_operations_errors_total") == 2


def test_images_that_containers_mount_are_counted() -> None:
    count = counter()
    mounts = [cri.Mount(image=cri.ImageSpec(image="i")), cri.Mount(host_path="/"), cri.Mount()]
    for fails in (False, True, False):
        call = create("c", fails=fails)
        assert isinstance(call.request, cri.CreateContainerRequest)
        call.request.config.mounts = mounts
        count.runtime_called(call)
    name = "kubelet_image_volume"
    assert value(count, f"{name}_requested_total") == 3
    assert value(count, f"{name}_mounted_succeed_total") == 2
    assert value(count, f"{name}_mounted_errors_total") == 1
